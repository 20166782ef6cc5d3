#!/bin/sh
set -e
sed -e "s/{{name}}/$NAME/g" -e "s/{{city}}/$CITY/g" letter.template > letter.txt
