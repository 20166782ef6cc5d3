#!/bin/bash
# One address before the servers of servers.sbatch, as they come and go. Runs where clients can reach it: on a login
# node, in a job, beside the trainer. See README.md.
#
#     OPENENV_FOLDER=/shared/openenv ./gateway.sh [options of `openenv gateway run`]
#
set -eu
folder=${OPENENV_FOLDER:?the folder of servers.sbatch}
until [ -s "$folder/backends" ]; do sleep 1; done
exec "${OPENENV_PYTHON:-python3}" -m openenv gateway run --backends-file "$folder/backends" "$@"
