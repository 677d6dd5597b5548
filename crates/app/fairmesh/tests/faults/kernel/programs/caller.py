# Calls each path several times on a kept connection, and says how many responses were the right ones. Arguments: an address, a host, by
# how much bodies grow, and paths.
import http.client, sys

address, host, growth, *paths = sys.argv[1:]
connection, right = http.client.HTTPConnection(address, timeout=20), 0
for round in range(10):
    for path in paths:
        sent = "b" * (round * int(growth)) if round % 2 else ""
        connection.request("POST" if sent else "GET", "/" + path, sent or None, {"host": host})
        response = connection.getresponse()
        body = response.read().decode()
        right += (response.status, body) == (200, path + ":" + sent + "x" * int(path.split("-")[1]))
print("right", right)
