#!/bin/sh
set -e
sed -n 's/^[^ ]* ERROR //p' server.log | sort | uniq -c | sed 's/^ *//' | sort -k1,1nr -k2 > errors.txt
