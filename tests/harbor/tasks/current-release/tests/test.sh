#!/bin/sh
if [ -L /app/current ] && [ "$(readlink -f /app/current)" = /app/releases/1.10 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
