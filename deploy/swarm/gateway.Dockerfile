# docker build -t openenv-gateway -f gateway.Dockerfile .

FROM python:3.12-slim
RUN pip install --no-cache-dir "openenv[gateway]>=1.0"
# A number, for clusters that only start images with a user id other than 0.
USER 1000
EXPOSE 8000
CMD ["openenv", "gateway", "run", "--backends", "servers:8000", "--listen", "0.0.0.0:8000"]
