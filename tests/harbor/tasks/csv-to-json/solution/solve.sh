#!/bin/sh
set -e
python3 -c '
import csv, json
rows = [{**row, "age": int(row["age"])} for row in csv.DictReader(open("people.csv"))]
json.dump(rows, open("people.json", "w"))
'
