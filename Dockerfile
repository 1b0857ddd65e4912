# One image for everything: workers, beat, Flower, console, migrations and the command line.

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/noetl
# What changes seldom comes first: the dependencies are a layer of their own, made anew when these two files change.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb')); \
print(*project['build-system']['requires'], *project['project']['dependencies'], \
*project['project']['optional-dependencies']['duckdb-postgres'], *project['project']['optional-dependencies']['otel'], \
sep='\n')" > requirements.txt \
 && /opt/noetl/bin/pip install --no-cache-dir -r requirements.txt -c constraints.txt
COPY README.md LICENSE ./
COPY migrations migrations
COPY noetl_celery noetl_celery
RUN /opt/noetl/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/noetl/bin/pip uninstall --yes setuptools pip

FROM python:3.12-slim
RUN useradd --uid 10001 --home-dir /app --no-create-home --shell /usr/sbin/nologin noetl \
 && install -d -o noetl -g noetl /app /var/lib/noetl/duckdb
COPY --from=build /opt/noetl /opt/noetl
WORKDIR /app
COPY playbooks playbooks

# A number, so that Kubernetes can see that it is not root. Only /tmp and /var/lib/noetl have to be writable.
USER 10001
ENV PATH=/opt/noetl/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# No HEALTHCHECK here: each program has one of its own, in docker-compose.yml and deploy/kubernetes.
ENTRYPOINT ["noetl-celery"]
CMD ["--help"]
