#!/bin/sh
# Start the servers and print what to set: eval "$(localstack/up.sh)"
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python="$here/../.venv/bin/python"
[ -x "$python" ] || python=python3
PYTHONPATH="$here/.." exec "$python" -m localstack.servers up
