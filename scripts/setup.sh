#!/usr/bin/env bash
# setup.sh . | '.[dev]': the virtual environment .venv with the package in it, editable, at the versions of constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
stop() { echo "setup: $*" >&2; exit 1; }

command -v "$python" >/dev/null || stop "no $python here; install Python 3.10 to 3.13, or name one: make PYTHON=/path/to/python3.12"
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' ||
  stop "$("$python" --version) is not supported; name a Python from 3.10 to 3.13: make PYTHON=/path/to/python3.12"
if ! .venv/bin/python -c '' 2>/dev/null; then
  echo "setup: making .venv with $("$python" --version)"
  "$python" -m venv --clear .venv || stop "$python cannot make a virtual environment; on Debian: apt-get install python3-venv"
fi
echo "setup: installing $1 (some minutes the first time)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "$1" ||
  stop "pip could not install $1 (its reason stands above); with a network, the same command goes on from here"
case $1 in *dev*) touch .venv/.installed-dev ;; esac
touch .venv/.installed
