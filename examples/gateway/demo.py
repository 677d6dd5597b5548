#!/usr/bin/env python3
"""Two tenants behind one gateway, in network namespaces of this machine.

The tenants red and blue have the same pod addresses, ports, virtual addresses and hosts. Unmodified curl and Python call; a table says who
reached whom. Then both tenants hold connections with equal 5-tuples while one replica of the gateway is killed and the other upgraded.

It needs root, ip, nft and curl, and says what is missing. Namespaces and processes end with it. The last line is a JSON object.
"""

import argparse, atexit, json, os, re, shutil, signal, subprocess, sys, tempfile, time

TENANTS = ["red", "blue"]
VIRTUAL = "10.96.0.1:80"
CONTROL = "10.77.0.1:7400"
GATEWAYS = ["10.77.0.1:7440", "10.77.0.1:7450"]
NODES = {"red": "10.77.0.2", "blue": "10.77.0.3"}
PODS = {"web": "10.1.0.2", "client": "10.1.1.2"}
PATIENCE = 60

RECORDS = """
kind: Service
name: {tenant}/web
virtualAddress: {virtual}
---
kind: Service
name: {tenant}/client
"""

# Red may call blue's vault by a route of its own, and blue accepts that; blue's web accepts nobody of red.
CROSSING = """
kind: Service
name: red/partner
---
kind: Policy
service: red/partner
routes:
  - name: to-blue
    match: {path: {prefix: /shared}}
    split: [{service: blue/web, weight: 1}]
"""

CONSENT = """
kind: Policy
service: blue/web
acceptRoutesFrom: [red/partner]
"""

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One segment for each response: two would wait for each other (Nagle, delayed acknowledgement).
    wbufsize, disable_nagle_algorithm = 65536, True
    def do_GET(self):
        body = (sys.argv[1] + " " + self.headers.get("x-fairmesh-caller", "nobody") + "\\n").encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer.request_queue_size = 128
http.server.ThreadingHTTPServer((sys.argv[2], 80), Handler).serve_forever()
"""

# Opens connections from given ports, waits until the other tenant has too, and calls on all of them.
CLIENT = """
import http.client, json, os, sys, time
tenant, source, address, count, requests, folder = sys.argv[1:7]
host, port = address.split(":")
connections = []
# Below the ports that the kernel gives to other connections, of which one may still be in TIME_WAIT.
for number in range(int(count)):
    connection = http.client.HTTPConnection(host, int(port), timeout=60, source_address=(source, 20000 + number))
    connection.connect()
    connections.append(connection)
open(f"{folder}/{tenant}.open", "w").close()
while not all(os.path.exists(f"{folder}/{one}.open") for one in ["red", "blue"]):
    time.sleep(0.01)
right = wrong = 0
for _ in range(int(requests)):
    for connection in connections:
        connection.request("GET", "/", headers={"host": "web"})
        response = connection.getresponse()
        body = response.read().decode()
        if response.status == 200 and body.startswith(tenant + "/web "):
            right += 1
        else:
            wrong += 1
            print(tenant, response.status, body, file=sys.stderr)
print(json.dumps({"right": right, "wrong": wrong}))
"""

# Calls until a file appears, each time over a new connection; a call that fails is counted by the second in which it failed.
LOAD = """
import http.client, json, os, sys, time
tenant, address, until = sys.argv[1:4]
host, port = address.split(":")
right, wrong, failed = 0, 0, []
while not os.path.exists(until):
    began = time.monotonic()
    try:
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("GET", "/", headers={"host": "web"})
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        if response.status == 200:
            open(f"{until}.{tenant}", "w").close()
            right, wrong = right + body.startswith(tenant + "/web "), wrong + (not body.startswith(tenant + "/web "))
        else:
            failed.append([began, f"{response.status} {body}"])
    except OSError as error:
        failed.append([began, repr(error)])
    except http.client.HTTPException as error:
        failed.append([began, repr(error)])
print(json.dumps({"right": right, "wrong": wrong, "failed": failed}))
"""


class Demo:
    def __init__(self, binary, quiet):
        self.binary, self.quiet = binary, quiet
        self.folder = tempfile.mkdtemp(prefix="fairmesh-gateway-")
        self.prefix = f"fairmesh-{os.getpid()}-"
        self.names, self.processes = [], {}
        atexit.register(self.close)

    def close(self):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.prefix + name], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def say(self, text=""):
        if not self.quiet:
            print(text, flush=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    # Networks.

    def namespace(self, name):
        ip("netns", "add", self.prefix + name)
        self.names.append(name)
        self.ip(name, "link set lo up")

    def ip(self, name, command):
        ip("-n", self.prefix + name, *command.split())

    def cable(self, one, other, addresses):
        """A cable between two namespaces: (namespace, interface, address) each."""
        (a, a_link, a_address), (b, b_link, b_address) = one, other
        self.ip(a, f"link add {a_link} type veth peer name {b_link} netns {self.prefix}{b}")
        for name, link, address in [(a, a_link, a_address), (b, b_link, b_address)]:
            if address:
                self.ip(name, f"addr add {address} dev {link}")
            self.ip(name, f"link set {link} up")
        return addresses

    def build(self):
        self.namespace("switch")
        self.ip("switch", "link add bridge type bridge")
        self.ip("switch", "link set bridge up")
        hosts = {"provider": "10.77.0.1", "red-node": NODES["red"], "blue-node": NODES["blue"]}
        for name, address in hosts.items():
            self.namespace(name)
            self.cable(("switch", name[:8], None), (name, "eth0", address + "/16"), None)
            self.ip("switch", f"link set {name[:8]} master bridge")
        for tenant in TENANTS:
            for pod, address in PODS.items():
                name, router = f"{tenant}-{pod}", address[:-1] + "1"
                self.namespace(name)
                self.cable((f"{tenant}-node", pod, router + "/24"), (name, "eth0", address + "/24"), None)
                self.ip(name, f"route add default via {router}")

    # Processes.

    def inside(self, name, args):
        return ["ip", "netns", "exec", self.prefix + name, *args]

    def start(self, key, name, args, **options):
        log = open(self.path(key + ".log"), "w")
        process = subprocess.Popen(self.inside(name, args), stdout=log, stderr=log, env=environment(), **options)
        self.processes[key] = process
        return process

    def fairmesh(self, key, name, args):
        return self.start(key, name, [self.binary, *args.split()])

    def run(self, name, args, text=None):
        done = subprocess.run(
            self.inside(name, args), input=text, capture_output=True, text=True, timeout=PATIENCE, env=environment()
        )
        return done

    def command(self, args, text=None):
        control = f"unix:{self.path('control.sock')}"
        done = self.run("provider", [self.binary, *args, "--control", control], text)
        if done.returncode != 0:
            raise Failed(f"fairmesh {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout

    def until(self, what, condition, patience=PATIENCE):
        """Waits for the condition. Fails at once with the log of a process that ends with an error meanwhile."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if condition():
                return
            for key, process in self.processes.items():
                if process.poll() not in (None, 0) and not getattr(process, "may_end", False):
                    raise Failed(f"{key} has ended:\n{self.log(key)}")
            time.sleep(0.05)
        logs = "\n".join(f"== {key}\n{self.log(key)}" for key in self.processes)
        raise Failed(f"not within {patience} s: {what}\n{logs}")

    def log(self, key, last=4000):
        with open(self.path(key + ".log")) as log:
            return log.read()[-last:] if last else log.read()

    def start_mesh(self):
        self.fairmesh(
            "control",
            "provider",
            f"control --trust-domain demo --http 127.0.0.1:0 --grpc {CONTROL} --grpc unix:{self.path('control.sock')} "
            f"--data-dir {self.path('data')}",
        )
        self.until("the control plane is up", lambda: self.try_command(["identity", "show"]))
        self.agent("edge", "provider", f"unix:{self.path('control.sock')}")
        for tenant in TENANTS:
            token = self.path(tenant + ".token")
            with open(token, "w") as file:
                file.write(self.command(["identity", "token", f"{tenant}-node", "--tenant", tenant]))
            self.agent(f"{tenant}-node", f"{tenant}-node", f"{CONTROL} --join-token-file {token}")
        for tenant in TENANTS:
            self.apply(RECORDS.format(tenant=tenant, virtual=VIRTUAL))

    def agent(self, name, where, control):
        self.fairmesh(
            f"agent-{name}",
            where,
            f"agent --name {name} --region eu --metrics none --listen unix:{self.path(name + '.sock')} "
            f"--state-dir {self.path('state-' + name)} --control {control}",
        )
        self.until(f"the agent {name} is up", lambda: os.path.exists(self.path(name + ".sock")))

    def try_command(self, args):
        try:
            return bool(self.command(args))
        except Failed:
            return False

    def apply(self, text):
        self.command(["apply", "-f", "-"], text)

    def start_gateway(self, number, key):
        self.fairmesh(
            key,
            "provider",
            f"gateway --agent unix:{self.path('edge.sock')} --listen {GATEWAYS[number]} --admin {admin(number)} "
            f"--handover {self.path(f'gateway-{number}.sock')} --client-id gateway-{number} --cores 1 "
            f"--drain-deadline 20s --access-log json",
        )

    def gateway_ready(self, number):
        return self.page("provider", admin(number), "/readyz").startswith("ready")

    def page(self, name, address, path):
        return self.run(name, ["curl", "--silent", "--max-time", "5", f"http://{address}{path}"]).stdout

    def start_node(self, tenant, key):
        node = NODES[tenant]
        self.fairmesh(
            key,
            f"{tenant}-node",
            f"node --agent unix:{self.path(tenant + '-node.sock')} --gateway {GATEWAYS[0]} --gateway {GATEWAYS[1]} "
            f"--pod {tenant}/web@{node}:7431={PODS['web']}:80 --pod {tenant}/client={PODS['client']} "
            f"--handover {self.path(tenant + '-handover.sock')} --connection-log --drain-deadline 20s",
        )

    def start_tenant(self, tenant):
        self.start(f"{tenant}-server", f"{tenant}-web", [sys.executable, "-c", SERVER, f"{tenant}/web", PODS["web"]])
        self.start_node(tenant, f"{tenant}-node")
        name = f"{tenant}-node"
        self.until(f"the node of {tenant} is ready", lambda: self.page(name, "127.0.0.1:7416", "/readyz") == "ready\n")
        captured = self.run(name, [self.binary, "proxy", "capture", "--from", "10.1.0.0/16", "--port", "80"])
        if captured.returncode != 0:
            raise Failed(f"proxy capture: {captured.stdout}{captured.stderr}")

    # Calls.

    def curl(self, tenant, *args):
        done = self.run(f"{tenant}-client", ["curl", "--silent", "--max-time", "20", "--write-out", "%{http_code}", *args])
        return done.stdout if done.returncode == 0 else f"curl exit {done.returncode}"

    def clients(self, count, requests):
        """Both tenants with equal source and destination addresses and ports. Returns the result of each."""
        for tenant in TENANTS:
            args = [sys.executable, "-c", CLIENT, tenant, PODS["client"], VIRTUAL, str(count), str(requests), self.folder]
            self.start(f"{tenant}-client", f"{tenant}-client", args)
        # A client waits for the other one, so the demo must not: it ends when either fails.
        return self.results("client", 10 * PATIENCE)

    def load(self, tenant):
        args = [sys.executable, "-c", LOAD, tenant, VIRTUAL, self.path("load.end")]
        self.start(f"{tenant}-load", f"{tenant}-client", args)

    def results(self, what, patience=PATIENCE):
        """The last line of each tenant's process, as JSON, once both have ended."""
        keys = {tenant: f"{tenant}-{what}" for tenant in TENANTS}
        ended = lambda: all(self.processes[key].poll() is not None for key in keys.values())
        self.until(f"each {what} ends", ended, patience)
        failed = [f"{key} has ended:\n{self.log(key)}" for key in keys.values() if self.processes[key].returncode != 0]
        if failed:
            raise Failed("\n".join(failed))
        return {tenant: json.loads(self.log(key, 0).splitlines()[-1]) for tenant, key in keys.items()}


class Failed(Exception):
    pass


def admin(number):
    return f"127.0.0.1:{7441 + 10 * number}"


def environment():
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:" + os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")}


def ip(*args):
    done = subprocess.run(["ip", *args], capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise Failed(f"ip {' '.join(args)}: {done.stderr.strip()}")


def missing():
    lacking = [tool for tool in ["ip", "nft", "curl"] if not shutil.which(tool, path=environment()["PATH"])]
    if lacking:
        return f"it lacks {', '.join(lacking)}: install iproute2, nftables and curl"
    if os.geteuid() != 0:
        return "it needs root, to make network namespaces"
    return None


def who_reached_whom(demo):
    """Each tenant by host and by virtual address, and what the other has."""
    rows, wrong = [], 0
    cases = [
        ("http://10.96.0.1/", ["http://10.96.0.1/"], "{own}/web"),
        ("http://web/", ["--connect-to", "web:80:10.96.0.1:80", "http://web/"], "{own}/web"),
        ("http://web/ at no virtual address", ["--connect-to", "web:80:10.96.9.9:80", "http://web/"], "{own}/web"),
        ("http://web.{own}/", ["--connect-to", "::10.96.9.9:80", "http://web.{own}/"], "{own}/web"),
        ("http://web.{other}/", ["--connect-to", "::10.96.9.9:80", "http://web.{other}/"], "404"),
    ]
    for own, other in [("red", "blue"), ("blue", "red")]:
        for label, args, expected in cases:
            args = [arg.format(own=own, other=other) for arg in args]
            got, want = demo.curl(own, *args), expected.format(own=own, other=other)
            right = got.startswith(want + " ") if "/" in want else got.endswith(want)
            wrong += not right
            rows.append((own, label.format(own=own, other=other), got.strip().replace("\n", " "), right))
    refused = demo.curl("red", "--connect-to", "::10.96.9.9:80", "http://partner/shared")
    rows.append(("red", "http://partner/shared, without blue's consent", refused.strip().replace("\n", " "), refused.endswith("403")))
    demo.apply(CONSENT)
    def consented():
        return demo.curl("red", "--connect-to", "::10.96.9.9:80", "http://partner/shared").startswith("blue/web ")
    demo.until("blue's consent is known", consented)
    rows.append(("red", "http://partner/shared, with blue's consent", "blue/web", True))
    demo.say(f"{'caller':<8}{'request':<48}{'answer':<60}")
    for own, label, got, right in rows:
        demo.say(f"{own:<8}{label:<48}{got[:58]:<60}{'' if right else 'WRONG'}")
    return len(rows), wrong + (not rows[-2][3])


def joined_connections(demo):
    """The connections that the gateway's access log and the nodes' logs both have, by their ids."""
    def ids(pattern, keys):
        return {found for key in keys for found in re.findall(pattern, demo.log(key, 0))}
    requests = ids('"connection":"([0-9a-f]{32})"', ["gateway-0", "gateway-1"])
    nodes = [f"{tenant}-node" for tenant in TENANTS]
    demo.until("the nodes log what the gateway logs", lambda: requests <= ids("[0-9a-f]{32}", nodes))
    return len(requests)


def replace_under_load(demo):
    """Kills one replica and upgrades the other while both tenants call."""
    for tenant in TENANTS:
        demo.load(tenant)
    for tenant in TENANTS:
        demo.until(f"{tenant} calls", lambda: os.path.exists(demo.path(f"load.end.{tenant}")))
    killed_at = time.monotonic()
    demo.processes["gateway-1"].may_end = True
    demo.processes["gateway-1"].kill()
    demo.until("the killed replica is avoided", lambda: time.monotonic() > killed_at + 6)
    upgraded_at = time.monotonic()
    demo.processes["gateway-0"].may_end = True
    demo.start_gateway(0, "gateway-0-next")
    demo.until("the upgraded replica has ended", lambda: demo.processes["gateway-0"].poll() is not None)
    open(demo.path("load.end"), "w").close()
    results = demo.results("load")
    failed = [[began, reason] for result in results.values() for began, reason in result["failed"]]
    return {
        "calls": sum(result["right"] for result in results.values()),
        "wrong": sum(result["wrong"] for result in results.values()),
        "failed_at_kill": len([1 for began, _ in failed if began < killed_at + 5]),
        "failed_later": [reason for began, reason in failed if killed_at + 5 <= began < upgraded_at],
        "failed_at_upgrade": [reason for began, reason in failed if began >= upgraded_at],
    }


def run(demo, count, requests):
    demo.build()
    demo.start_mesh()
    for number in range(2):
        demo.start_gateway(number, f"gateway-{number}")
    for tenant in TENANTS:
        demo.start_tenant(tenant)
    for number in range(2):
        demo.until(f"gateway {number} is ready", lambda: demo.gateway_ready(number))
    demo.apply(CROSSING)
    for tenant in TENANTS:
        demo.until(f"{tenant} reaches its web", lambda: demo.curl(tenant, "http://10.96.0.1/").startswith(f"{tenant}/web "))
    demo.say("Tenants red and blue: the same pod addresses, ports, virtual addresses and hosts.\n")
    rows, wrong = who_reached_whom(demo)
    answers = demo.clients(count, requests)
    demo.say(f"\nWith {count} connections of equal 5-tuples each: {answers}")
    joined = joined_connections(demo)
    demo.say(f"{joined} connections are in the logs of a node and of the gateway, by their ids")
    replaced = replace_under_load(demo)
    demo.say(f"One replica killed, the other upgraded, under load: {replaced}")
    return {"rows": rows, "wrong": wrong, "answers": answers, "joined": joined, "replaced": replaced}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/debug/fairmesh")
    parser.add_argument("--connections", type=int, default=50, help="connections of each tenant")
    parser.add_argument("--requests", type=int, default=100, help="requests on each connection")
    parser.add_argument("--json", action="store_true", help="print the result alone")
    args = parser.parse_args()
    lacking = missing()
    if lacking:
        print(f"the demo cannot run here: {lacking}", file=sys.stderr)
        return 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    demo = Demo(os.path.abspath(args.binary), args.json)
    try:
        result = run(demo, args.connections, args.requests)
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    print(json.dumps(result))
    replaced = result["replaced"]
    right = all(answer["wrong"] == 0 for answer in result["answers"].values())
    lost = replaced["wrong"] or replaced["failed_later"] or replaced["failed_at_upgrade"]
    return 0 if right and not result["wrong"] and not lost else 1


if __name__ == "__main__":
    sys.exit(main())
