#!/bin/sh
set -e
awk -F, 'NR > 1 { total[$1] += $3 } END { for (name in total) print name "," total[name] }' orders.csv | sort > totals.csv
