#!/bin/bash
# A gateway in front of the servers of servers.sbatch, which may start and stop. Run it on a machine that clients can
# reach: a login node, a job, or the machine of the trainer. See README.md.
#
#     OPENENV_FOLDER=/shared/openenv ./gateway.sh [options of `openenv gateway run`]
#
set -eu
folder=${OPENENV_FOLDER:?the folder of servers.sbatch}
until [ -s "$folder/backends" ]; do sleep 1; done
exec "${OPENENV_PYTHON:-python3}" -m openenv gateway run --backends-file "$folder/backends" "$@"
