FROM python:3.12-slim

RUN useradd --create-home --uid 10001 noetl
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY migrations migrations
COPY noetl_celery noetl_celery
RUN pip install --no-cache-dir -c constraints.txt .
COPY playbooks playbooks

USER noetl
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["noetl-celery"]
CMD ["--help"]
