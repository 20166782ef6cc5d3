#!/bin/sh
set -e
chmod u+x ./*.sh
chmod 600 secret.key
