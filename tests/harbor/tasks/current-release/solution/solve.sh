#!/bin/sh
set -e
ln -sfn "releases/$(ls releases | sort -V | tail -n 1)" current
