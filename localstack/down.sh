#!/bin/sh
# Stop the servers that up.sh started, and throw away what they hold.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python="$here/../.venv/bin/python"
[ -x "$python" ] || python=python3
PYTHONPATH="$here/.." exec "$python" -m localstack.servers down
