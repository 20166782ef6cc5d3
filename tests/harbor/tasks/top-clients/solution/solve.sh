#!/bin/sh
set -e
cut -d ' ' -f 1 access.log | sort | uniq -c | sort -rn | head -n 2 | awk '{ print $2 }' > top.txt
