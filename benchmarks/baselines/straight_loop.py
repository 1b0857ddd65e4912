"""The acceptance playbook as a script: one process, one patient after the other, and nothing that survives it.

    python -m benchmarks.baselines.straight_loop

It fetches every page, saves it and ticks the patient off, each statement a transaction. It waits for NOTIFY with
``{"api_url": …, "data_types": […], "patients": …}``, works, and waits again.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import psycopg
from psycopg.types.json import Jsonb

from benchmarks.baselines import queue_table

TABLES = """
DROP TABLE IF EXISTS bench.straight_work, bench.straight_pages;
CREATE TABLE bench.straight_work (
  data_type text, patient_id int, status text NOT NULL DEFAULT 'open', PRIMARY KEY (data_type, patient_id));
CREATE TABLE bench.straight_pages (
  data_type text, patient_id int, page int, total_records int NOT NULL, records jsonb NOT NULL,
  PRIMARY KEY (data_type, patient_id, page));
"""
SEED = "INSERT INTO bench.straight_work (data_type, patient_id) SELECT %s, generate_series(1, %s)"
SAVE = """
INSERT INTO bench.straight_pages (data_type, patient_id, page, total_records, records) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (data_type, patient_id, page) DO UPDATE
SET total_records = EXCLUDED.total_records, records = EXCLUDED.records
"""
FINISH = "UPDATE bench.straight_work SET status = 'done' WHERE data_type = %s AND patient_id = %s"


def fetch(connection: psycopg.Connection[Any], api: httpx.Client, data_type: str, patient: int) -> None:
    token = ""
    while True:
        answer = api.get(f"/patients/{patient}/{data_type}", params={"size": 10, "next": token})
        answer.raise_for_status()
        page = answer.json()
        values = (data_type, patient, page["page"], page["total"], Jsonb(page["records"]))
        connection.execute(SAVE, values)
        token = page["next"]
        if not token:
            break
    connection.execute(FINISH, (data_type, patient))


def run(connection: psycopg.Connection[Any], api_url: str, data_types: list[str], patients: int) -> None:
    with httpx.Client(base_url=api_url, timeout=10) as api:
        connection.execute(TABLES)
        for data_type in data_types:
            connection.execute(SEED, (data_type, patients))
        for data_type in data_types:
            for patient in range(1, patients + 1):
                fetch(connection, api, data_type, patient)
    connection.execute("NOTIFY bench_straight_done")


def main() -> None:
    connection, listener = queue_table.connect(), queue_table.connect()
    listener.execute("LISTEN bench_straight")
    print("worker is ready", flush=True)
    for notice in listener.notifies():
        run(connection, **json.loads(notice.payload))


if __name__ == "__main__":
    main()
