"""Calls a host at a virtual address some times on one connection, and prints what each answer says."""

import http.client
import sys
import time

address, host, path, calls = sys.argv[1:]
connection = http.client.HTTPConnection(address, timeout=5)


def call():
    connection.request("GET", path, headers={"host": host})
    answer = connection.getresponse()
    body = answer.read().decode()
    return answer.status, body if answer.headers.get_content_type() == "text/plain" else ""


# The sidecar may be about to learn of the service.
for _ in range(100):
    if call()[0] == 200:
        break
    time.sleep(0.05)
for _ in range(int(calls)):
    print(*call())
