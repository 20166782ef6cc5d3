#!/bin/sh
set -e
awk '{ for (i = 1; i <= NF; i++) row[i] = row[i] (NR > 1 ? " " : "") $i } END { for (i = 1; i <= NF; i++) print row[i] }' matrix.txt > transposed.txt
