"""A slide as DICOM: one file per level, as scanners and converters write them (VL Whole Slide Microscopy, TILED_FULL)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TILE = 256


def write_dicom(
    folder: Path,
    pixels: np.ndarray,
    mpp: float,
    *,
    n_levels: int = 2,
    tag: int = 1,
    kind_of_image: str = "VOLUME",
    name: str = "level",
) -> list[Path]:
    """Levels of a picture (h, w, 3), each half of the one before, uncompressed."""
    from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    root, kind = "1.2.826.0.1.3680043.8.498", "1.2.840.10008.5.1.4.1.1.77.1.6"
    folder.mkdir(parents=True, exist_ok=True)
    height, width = pixels.shape[:2]
    paths = []
    for level in range(n_levels):
        step = 2**level
        image = pixels[::step, ::step]
        rows, columns = -(-image.shape[0] // TILE), -(-image.shape[1] // TILE)
        padded = np.full((rows * TILE, columns * TILE, 3), 255, dtype=np.uint8)
        padded[: image.shape[0], : image.shape[1]] = image
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = kind
        meta.MediaStorageSOPInstanceUID = f"{root}.{tag}.3.{level + 1}"
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        meta.ImplementationClassUID = f"{root}.9"
        path = folder / f"{name}_{level}.dcm"
        data = FileDataset(path, {}, file_meta=meta, preamble=b"\0" * 128)
        data.SOPClassUID, data.SOPInstanceUID = kind, meta.MediaStorageSOPInstanceUID
        data.StudyInstanceUID, data.SeriesInstanceUID = f"{root}.{tag}.1", f"{root}.{tag}.2"
        data.FrameOfReferenceUID = f"{root}.{tag}.4"
        data.Modality, data.SeriesNumber, data.InstanceNumber = "SM", 1, level + 1
        data.PatientName = data.PatientID = data.StudyID = data.ContainerIdentifier = "test"
        data.ImageType = [
            "ORIGINAL" if level == 0 else "DERIVED",
            "PRIMARY",
            kind_of_image,
            "NONE" if level == 0 else "RESAMPLED",
        ]
        data.DimensionOrganizationType, data.VolumetricProperties = "TILED_FULL", "VOLUME"
        data.SamplesPerPixel, data.PhotometricInterpretation, data.PlanarConfiguration = 3, "RGB", 0
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 8, 8, 7, 0
        data.Rows = data.Columns = TILE
        data.NumberOfFrames = rows * columns
        data.TotalPixelMatrixColumns, data.TotalPixelMatrixRows = image.shape[1], image.shape[0]
        data.TotalPixelMatrixFocalPlanes = 1
        data.ImagedVolumeWidth, data.ImagedVolumeHeight = width * mpp / 1000, height * mpp / 1000
        data.ImagedVolumeDepth = 0.001
        measures, shared, path_item = Dataset(), Dataset(), Dataset()
        spacing = mpp * step / 1000
        measures.PixelSpacing, measures.SliceThickness = [spacing, spacing], 0.001
        shared.PixelMeasuresSequence = [measures]
        data.SharedFunctionalGroupsSequence = [shared]
        path_item.OpticalPathIdentifier = "1"
        data.OpticalPathSequence = [path_item]
        data.NumberOfOpticalPaths = 1
        tiles = padded.reshape(rows, TILE, columns, TILE, 3).transpose(0, 2, 1, 3, 4)
        data.PixelData = np.ascontiguousarray(tiles).tobytes()
        data.save_as(path, enforce_file_format=True)
        paths.append(path)
    return paths
