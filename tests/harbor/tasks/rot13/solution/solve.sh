#!/bin/sh
set -e
tr 'A-Za-z' 'N-ZA-Mn-za-m' < cipher.txt > plain.txt
