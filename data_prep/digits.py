#!/usr/bin/env python3
"""Makes arrays of scikit-learn's digits, for `ringtrain-data import`: .ci/digits.sh | data_prep/digits.py digits.h5

Data set `images`: u8 [1797, 8, 8], grey values 0 to 16 spread over 0 to 255; `labels`: i64 [1797].
"""

import sys

try:
    import h5py
    import numpy
except ImportError as error:
    sys.exit(f"digits.py: error: {sys.executable} has no {error.name}; install python3-h5py (make setup), or set PYTHON")

SAMPLES, PIXELS, WHITE = 1797, 64, 16


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: digits.py FILE.h5 < digits.csv")
    try:
        table = numpy.loadtxt(sys.stdin, delimiter=",", ndmin=2)
    except ValueError as error:
        sys.exit(f"digits.py: error: the digits are not numbers between commas: {error}")
    right = table.shape == (SAMPLES, PIXELS + 1) and (table >= 0).all() and (table == table.astype(int)).all()
    if not right or table[:, :PIXELS].max() > WHITE or table[:, PIXELS].max() > 9:
        sys.exit(
            f"digits.py: error: {table.shape[0]} lines of {table.shape[1]} numbers; expected {SAMPLES} of {PIXELS} grey values "
            f"from 0 to {WHITE} and a digit, as in scikit-learn's digits.csv.gz"
        )
    pixels = numpy.rint(table[:, :PIXELS] * 255 / WHITE).astype(numpy.uint8)
    with h5py.File(sys.argv[1], "w") as file:
        file["images"] = pixels.reshape(-1, 8, 8)
        file["labels"] = table[:, PIXELS].astype(numpy.int64)


if __name__ == "__main__":
    main()
