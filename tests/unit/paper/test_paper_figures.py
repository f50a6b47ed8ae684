import re

import pytest
from paper.comparison import TIMES, paper_figures

CELL = re.compile(rf"[+-]?\d+(\.\d+)?(±\d+\.\d+)?{TIMES}?")
TEXT_TABLES = {"anchor_protocol", "capacity_overhead", "dataset_details", "metric_defs"}


@pytest.mark.parametrize(
    ("table", "row", "column", "printed"),
    [
        ("cls_main", "abmil.host", "bracs.macro_f1", "0.634±0.045"),
        ("cls_main", "abmil.delta", "bracs.macro_f1", "+0.069"),
        ("cls_main", "transmil.delta", "panda.macro_f1", "-0.002"),
        ("cls_main", "hdmil.host", "brca.auc", "0.835±0.017"),
        ("surv_main", "camil.delta", "stad.c_index", "-0.003"),
        ("ablation", "full", "complement_degradation", "0.412±0.086"),
        ("causal", "attention", "keep_only", "-0.078"),
        ("same_budget", "gce_soft", "macro_f1", "0.754±0.029"),
        ("stability", "gce_discrete", "jaccard", "0.606±0.079"),
        ("explain", "occlusion", "runtime", f"8.70{TIMES}"),
        ("minimal_subset_main", "8.prefix", "slides_with_2", "72.67±13.28"),
        ("camelyon_localization", "transmil.delta", "dice", "+0.295±0.026"),
        ("cls_significance", "abmil", "bracs", "0.003"),
        ("surv_significance", "hdmil", "luad", "0.001"),
        ("budget", "0.20", "evidence_fraction", "0.182±0.022"),
        ("selector_arch", "top_k", "cd_gap", "0.031±0.011"),
        ("grounding", "free_bridge", "task_metric", "0.732±0.015"),
        ("backbone_generalization", "bracs.vit_s.abmil", "host", "0.634±0.050"),
        ("failure", "stad", "case_failure", "21.6"),
        ("cost", "prefilter", "relative_utility", "0.989"),
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
