#!/bin/sh
mkdir -p $2
for name in $(ls $1); do
    cp $1/$name $2/$name
done
