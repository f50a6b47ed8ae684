import pytest
from paper.comparison import paper_figures


@pytest.mark.parametrize(
    ("table", "row", "column", "printed"),
    [
        ("cls_main", "abmil.host", "bracs.macro_f1", "0.634±0.045"),
        ("cls_main", "abmil.delta", "bracs.macro_f1", "+0.069"),
        ("ablation", "full", "complement_degradation", "0.412±0.086"),
        ("minimal_subset_main", "8.prefix", "slides_with_2", "72.67±13.28"),
        ("backbone_generalization", "bracs.vit_s.abmil", "host", "0.634±0.050"),
        ("dataset_details", "nsclc", "size", "1,053 WSIs; LUAD 541 / LUSC 512"),
    ],
)
def test_a_cell_reads_as_it_is_printed(table, row, column, printed):
    assert paper_figures().table(table).cell(row, column) == printed


def test_localisation_gains_are_the_differences_of_their_rows():
    table = paper_figures().table("camelyon_localization")
    for host in ("abmil", "clam_sb", "transmil", "dsmil", "dtfd", "camil"):
        for metric in table.columns:
            gain = table.number(f"{host}.gce", metric) - table.number(f"{host}.host", metric)
            assert gain == pytest.approx(table.number(f"{host}.delta", metric), abs=6e-4)


def test_the_main_table_repeats_the_vit_rows_of_the_encoder_table():
    main, encoders = (
        paper_figures().table(name) for name in ("cls_main", "backbone_generalization")
    )
    for host in ("abmil", "clam_sb", "transmil", "dtfd"):
        assert main.number(f"{host}.host", "bracs.macro_f1") == encoders.number(
            f"bracs.vit_s.{host}", "host"
        )
