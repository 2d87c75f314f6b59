"""netCDF files that may be damaged, or a stranger's: refused before the library that reads them fills the memory or never returns."""

import io
import re
import struct
import sys
from typing import Any

import h5py
import numpy as np
import xarray as xr

from offspan.errors import OffspanError
from offspan.files import check_declared, excerpt

HEAP = re.compile(rb"GCOL\x01\0{3}")  # a global heap of HDF5: these eight bytes, its size, and objects one after the other
OBJECT = struct.Struct("<HHIQ")  # number, references, nothing, size


def read_netcdf(content: bytes) -> xr.Dataset | str:
    """What is in a netCDF file, or why it cannot be read."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # a file that h5netcdf could not open complains again when it is dropped
    try:
        _check_heaps(content)
        _check_declared(content)
        found = xr.load_dataset(io.BytesIO(content), engine="h5netcdf")
        plain = str | int | float | np.integer | np.floating
        if wrong := [name for name, value in found.attrs.items() if not isinstance(value, plain)]:
            return f"its attribute {wrong[0]!r} is neither a text nor a number"
        return found
    except Exception as error:  # what is raised of a damaged file has no common class
        return excerpt(error)
    finally:
        sys.unraisablehook = hook


def _check_heaps(content: bytes) -> None:
    """Raises where HDF5, which goes from object to object by their sizes, would not come to the end of a heap: it then never returns."""
    for heap in HEAP.finditer(content):
        place = heap.end() + 8
        end = heap.start() + int.from_bytes(content[heap.end() : place], "little")
        if end > len(content):
            raise OffspanError("a heap that is longer than the file")
        while place + OBJECT.size <= end:
            number, _, _, size = OBJECT.unpack_from(content, place)
            place += OBJECT.size + -(-size // 8) * 8 if number else size  # number 0 is free space, whose size counts its own header
            if place > end or (number == 0 and size < OBJECT.size):
                raise OffspanError("a heap whose objects do not fit into it")


def _check_declared(content: bytes) -> None:
    """Raises where a small file would fill the memory, or has its numbers in other files, before any of them is read."""

    known: dict[Any, int] = {}

    def declared(group: h5py.Group, within: tuple[Any, ...]) -> int:
        """In bytes, under each of its names; a text is no longer than the file."""
        if group.id in known:
            return known[group.id]
        found = 0
        for name, item in group.items():
            if isinstance(item, h5py.Group):
                if item.id in within:
                    raise OffspanError(f"the group {name} holds itself")
                found += declared(item, (*within, item.id))
            elif isinstance(item, h5py.Dataset):
                if item.external or item.is_virtual:
                    raise OffspanError(f"{name} has its numbers in other files")
                found += (item.size or 0) * (len(content) if item.dtype.kind == "O" else item.dtype.itemsize)
        known[group.id] = found
        return found

    with h5py.File(io.BytesIO(content), "r") as file:
        if file.id.get_create_plist().get_sizes() != (8, 8):
            raise OffspanError("addresses and sizes of another width than eight bytes")
        check_declared(len(content), declared(file, (file.id,)))
