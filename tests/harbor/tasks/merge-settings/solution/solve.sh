#!/bin/sh
set -e
cat defaults.conf site.conf | awk -F= '{ line[$1] = $0 } END { for (key in line) print line[key] }' | sort > merged.conf
