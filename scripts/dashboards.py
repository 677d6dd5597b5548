#!/usr/bin/env python3
"""Writes the dashboards in deploy/grafana; with --check, says whether they are as this script writes them.

A panel is a line here and fifty in Grafana's schema, so that the layout, units and thresholds of all dashboards agree. Queries use the
recording rules of deploy/prometheus/rules.yaml where panels share a figure. A library for dashboards (grafonnet, grafana-foundation-sdk)
was rejected: it brings a toolchain, for a schema of which ten fields are used.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
# Colours from a value on.
FAILURES = [(None, "green"), (0.01, "orange"), (0.05, "red")]
ANY_IS_BAD = [(None, "green"), (1, "red")]
ANY_IS_ODD = [(None, "green"), (1, "orange")]
FULL = [(None, "green"), (0.7, "orange"), (0.9, "red")]
AGE = [(None, "green"), (60, "orange"), (300, "red")]
LEFT = [(None, "red"), (12 * 3600, "orange"), (15 * 3600, "green")]
UP = [(None, "red"), (1, "green")]


def query(expression, legend="", instant=False):
    return {"expr": expression, "legendFormat": legend or "__auto", "instant": instant}


def panel(kind, title, unit, queries, width=8, height=8, steps=None, help=""):
    """One panel. Queries are expressions, or pairs of expression and legend."""
    pairs = [entry if isinstance(entry, tuple) else (entry, "") for entry in ([queries] if isinstance(queries, (str, tuple)) else queries)]
    instant = kind in ("stat", "table", "bargauge")
    targets = []
    for number, (expression, legend) in enumerate(pairs):
        target = {"refId": chr(ord("A") + number), "datasource": DATASOURCE, **query(expression, legend, instant)}
        targets.append({**target, "format": "table"} if kind == "table" else target)
    thresholds = {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps or [(None, "green")]]}
    defaults = {"unit": unit, "min": 0, "thresholds": thresholds, "color": {"mode": "thresholds" if steps and instant else "palette-classic"}}
    made = {
        "type": kind,
        "title": title,
        "description": help,
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "gridPos": {"w": width, "h": height},
    }
    SHAPES[kind](made, steps)
    return made


def shape_timeseries(made, steps):
    custom = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": False}
    # Gaps in a series are gaps in its line.
    if steps and len(steps) > 1:
        custom["thresholdsStyle"] = {"mode": "line"}
    made["fieldConfig"]["defaults"]["custom"] = custom
    made["options"] = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def shape_stat(made, steps):
    made["options"] = {"colorMode": "value", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "auto"}


def shape_bargauge(made, steps):
    made["options"] = {"displayMode": "basic", "orientation": "horizontal", "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}


def shape_table(made, steps):
    made["options"] = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "fields": ""}}


SHAPES = {"timeseries": shape_timeseries, "stat": shape_stat, "bargauge": shape_bargauge, "table": shape_table}


def lines(title, unit, queries, **more):
    return panel("timeseries", title, unit, queries, **more)


def stat(title, unit, queries, **more):
    return panel("stat", title, unit, queries, width=more.pop("width", 4), height=more.pop("height", 4), **more)


def table(title, columns, by, **more):
    """A table with a row for each value of the labels `by`, and columns of (title, unit, expression, thresholds)."""
    made = panel("table", title, "short", [expression for _, _, expression, _ in columns], width=WIDTH, **more)
    hidden = {"Time": True, **{f"Time {number}": True for number in range(1, len(columns) + 1)}}
    names = {label: title for label, title in by.items()}
    for number, (name, unit, _, steps) in enumerate(columns):
        field = f"Value #{chr(ord('A') + number)}"
        names[field] = name
        properties = [{"id": "unit", "value": unit}]
        if steps:
            marks = {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}
            properties += [{"id": "thresholds", "value": marks}, {"id": "custom.cellOptions", "value": {"type": "color-text"}}, {"id": "color", "value": {"mode": "thresholds"}}]
        made["fieldConfig"]["overrides"].append({"matcher": {"id": "byName", "options": name}, "properties": properties})
    made["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": hidden, "renameByName": names}},
        {"id": "sortBy", "options": {"sort": [{"field": columns[0][0], "desc": True}]}},
    ]
    return made


def variable(name, label, definition, pattern="", many=True):
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": definition,
        "query": {"query": definition, "refId": name},
        "regex": pattern,
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "allValue": ".*" if many else None,
        "current": {"text": "All", "value": "$__all"} if many else {},
    }


def place(rows):
    """Lays the panels of each row out from left to right, with a header above."""
    placed, y = [], 0
    for title, panels in rows:
        placed.append({"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        x, y, height = 0, y + 1, 0
        for one in panels:
            size = one["gridPos"]
            if x + size["w"] > WIDTH:
                x, y, height = 0, y + height, 0
            one["gridPos"] = {"x": x, "y": y, "w": size["w"], "h": size["h"]}
            x, height = x + size["w"], max(height, size["h"])
            placed.append(one)
        y += height
    for number, one in enumerate(placed, 1):
        one["id"] = number
    return placed


def dashboard(name, title, about, variables, rows):
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}, "refresh": 1}
    links = [{"type": "dashboards", "title": "Fairmesh", "tags": ["fairmesh"], "asDropdown": True, "includeVars": True, "keepTime": True}]
    return {
        "uid": f"fairmesh-{name}",
        "title": f"Fairmesh / {title}",
        "description": about,
        "tags": ["fairmesh"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": links,
        "templating": {"list": [source, *variables]},
        "annotations": {"list": []},
        "panels": place(rows),
    }


TENANT = variable("tenant", "Tenant", "label_values(service:fairmesh_calls:rate2m, fairmesh_callee)", r"/^([^\/(]+)\//")
SERVICE = variable("service", "Service", 'label_values(service:fairmesh_calls:rate2m{fairmesh_callee=~"($tenant)/.*"}, fairmesh_callee)')
REGION = variable("region", "Caller's region", "label_values(region:fairmesh_responses:rate2m, from_region)")
CALLEES = '{fairmesh_callee=~"($tenant)/.*"}'
CALLED = '{fairmesh_callee=~"$service"}'
OF_SERVICE = '{service=~"$service"}'
OF_PROCESS = "* on (job, instance) group_left (process) fairmesh_build_info"


def rate(series, by="", window="$__rate_interval"):
    total = f"sum by ({by}) (rate({series}[{window}]))" if by else f"sum(rate({series}[{window}]))"
    return total


def calls_by(labels, matchers):
    """Calls per second over HTTP and of gRPC: native histograms, or classic ones."""
    parts = [
        form
        for name in ("http_client_request_duration_seconds", "rpc_client_call_duration_seconds")
        for form in (f"histogram_count(rate({name}{matchers}[$__rate_interval]))", f"rate({name}_count{matchers}[$__rate_interval])")
    ]
    return f"sum by ({labels}) ({' or '.join(parts)})"


def quantile(share, matchers):
    """A quantile of the durations of calls: native histograms, or classic ones."""

    def sums(suffix):
        names = (f"http_client_request_duration_seconds{suffix}", f"rpc_client_call_duration_seconds{suffix}")
        return " or ".join(f"rate({name}{matchers}[$__rate_interval])" for name in names)

    return f"histogram_quantile({share}, sum({sums('')})) or histogram_quantile({share}, sum by (le) ({sums('_bucket')}))"


def fleet():
    calls, failures, p99 = "service:fairmesh_calls:rate2m", "service:fairmesh_call_failures:ratio_rate2m", "service:fairmesh_call_duration_seconds:p99_rate2m"
    pair = "pair:fairmesh_calls:rate2m"
    return dashboard("fleet", "Fleet", "All services and processes: who calls whom, how well, and by which releases.", [TENANT], [
        ("Now", [
            stat("Calls", "reqps", f"sum({calls}{CALLEES})"),
            stat("Failed calls", "percentunit", f"sum(pair:fairmesh_call_failures:rate2m{CALLEES}) / sum({pair}{CALLEES})", steps=FAILURES, help="Responses 5xx, and statuses of gRPC that are failures of a server."),
            stat("Slowest p99", "s", f"max({p99}{CALLEES} >= 0)", help="Of the service with the highest 99th percentile."),
            stat("Called services", "short", f"count({calls}{CALLEES})"),
            stat("Oldest data", "s", "max(instance:fairmesh_data_age_seconds:max)", steps=AGE, help="Age of the routing information by which a process decides; 0 while all are current."),
            stat("Disconnected agents", "short", "count(fairmesh_agent_connected == 0) or sum(fairmesh_agent_connected * 0)", steps=ANY_IS_BAD),
        ]),
        ("Services", [
            lines("Calls by service", "reqps", (f"topk(12, {calls}{CALLEES})", "{{fairmesh_callee}}")),
            lines("Failed calls by service", "percentunit", (f"topk(12, {failures}{CALLEES})", "{{fairmesh_callee}}"), steps=FAILURES),
            lines("p99 by service", "s", (f"topk(12, {p99}{CALLEES} >= 0)", "{{fairmesh_callee}}")),
            table("Who calls whom", [
                ("Calls/s", "reqps", f"topk(100, {pair}{CALLEES})", None),
                ("Failed", "percentunit", f"pair:fairmesh_call_failures:ratio_rate2m{CALLEES} and topk(100, {pair}{CALLEES})", FAILURES),
                ("p99", "s", f"pair:fairmesh_call_duration_seconds:p99_rate2m{CALLEES} and topk(100, {pair}{CALLEES})", None),
            ], {"fairmesh_caller": "Caller", "fairmesh_callee": "Service"}, height=10, help="Calls that proxies and gateways measure, the busiest 100 pairs."),
            lines("Calls of programs of each machine", "reqps", ('topk(12, sum by (fairmesh_caller, fairmesh_callee) (rate(fairmesh_agent_calls_total{fairmesh_callee=~"($tenant)/.*"}[$__rate_interval])))', "{{fairmesh_caller}} to {{fairmesh_callee}}"), width=12, help="Sums that agents make of what their programs report, the library included."),
            lines("Endpoints by state", "short", ("sum by (state) (fairmesh_control_endpoints)", "{{state}}"), width=12),
        ]),
        ("Processes", [
            lines("Processes by kind and release", "short", ("count by (process, version) (fairmesh_build_info)", "{{process}} {{version}}")),
            lines("CPU by kind", "short", ("sum by (process) (instance:fairmesh_cpu_cores:rate2m)", "{{process}}"), help="Cores."),
            lines("Memory by kind", "bytes", (f"sum by (process) (process_resident_memory_bytes {OF_PROCESS})", "{{process}}")),
            lines("Listeners closest to their maximum", "percentunit", ("topk(8, instance:fairmesh_listener_connections:ratio)", "{{process}} {{instance}} {{listener}}"), steps=FULL, width=12),
            lines("Restarts", "short", (f"sum by (process) (changes(process_start_time_seconds[$__rate_interval]) {OF_PROCESS})", "{{process}}"), width=12),
        ]),
    ])


def service():
    by_kind = [(f"sum by (service) (rate(fairmesh_proxy_{name}_total{OF_SERVICE}[$__rate_interval]))", f"{legend} {{{{service}}}}") for name, legend in (
        ("retries", "retries"), ("hedges", "hedges"), ("retry_budget_exhausted", "no budget left"))]
    refused = [(f"sum by (service) (rate(fairmesh_proxy_{name}_total{OF_SERVICE}[$__rate_interval]))", f"{legend} {{{{service}}}}") for name, legend in (
        ("faults", "without a response"), ("attempts_without_endpoint", "no endpoint"), ("rate_limited_calls", "rate limited"), ("dropped_calls", "dropped"), ("panic_picks", "panic"))]
    return dashboard("service", "Service", "One service: its callers, outcomes, retries, backends and servers.", [TENANT, SERVICE], [
        ("Now", [
            stat("Calls", "reqps", f"sum(service:fairmesh_calls:rate2m{CALLED})"),
            stat("Failed calls", "percentunit", f"max(service:fairmesh_call_failures:ratio_rate2m{CALLED})", steps=FAILURES),
            stat("p50", "s", f"max(service:fairmesh_call_duration_seconds:p50_rate2m{CALLED} >= 0)"),
            stat("p99", "s", f"max(service:fairmesh_call_duration_seconds:p99_rate2m{CALLED} >= 0)"),
            stat("Avoided endpoints", "short", f"max(fairmesh_proxy_ejected_endpoints{OF_SERVICE})", steps=ANY_IS_ODD, help="Endpoints that one proxy avoids because of the outcomes of its calls."),
            stat("Wasted cores", "short", f"sum(fairmesh_imbalance_wasted_cores{OF_SERVICE})", help="By uneven load, in the last whole minute."),
        ]),
        ("Calls", [
            lines("Calls by caller", "reqps", (f"sum by (fairmesh_caller) (pair:fairmesh_calls:rate2m{CALLED})", "{{fairmesh_caller}}")),
            lines("Failed calls by caller", "percentunit", (f"pair:fairmesh_call_failures:ratio_rate2m{CALLED}", "{{fairmesh_caller}}"), steps=FAILURES),
            lines("Duration", "s", [(quantile(share, CALLED), name) for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))], help="Time until the response headers; of gRPC, until the status."),
            lines("p99 by caller", "s", (f"pair:fairmesh_call_duration_seconds:p99_rate2m{CALLED} >= 0", "{{fairmesh_caller}}")),
            lines("Calls by status", "reqps", (calls_by("http_response_status_code, rpc_response_status_code", CALLED), "{{http_response_status_code}}{{rpc_response_status_code}}")),
            lines("Retries and hedges", "reqps", by_kind),
            lines("Calls without a server", "reqps", refused, width=12),
            lines("Responses by backend and class", "reqps", (rate(f"fairmesh_proxy_responses_total{OF_SERVICE}", "backend, class"), "{{backend}} {{class}}"), width=12, help="A canary is a backend of its own."),
        ]),
        ("Servers", [
            lines("Requests by caller, at the servers", "reqps", (rate(f"fairmesh_proxy_inbound_responses_total{OF_SERVICE}", "caller, class"), "{{caller}} {{class}}"), help="Counted by proxies in front of programs."),
            lines("In flight, and the limit", "short", [
                (f"sum(fairmesh_proxy_inbound_requests_in_flight * on (job, instance) group_left () max by (job, instance) (fairmesh_proxy_inbound_request_bytes_total{OF_SERVICE} * 0 + 1))", "in flight"),
                (f"sum((fairmesh_proxy_inbound_concurrency_limit < 4294967295) * on (job, instance) group_left () max by (job, instance) (fairmesh_proxy_inbound_request_bytes_total{OF_SERVICE} * 0 + 1))", "limit"),
            ], help="The limit of servers that have one."),
            lines("Bytes at the servers", "Bps", [(rate(f"fairmesh_proxy_inbound_request_bytes_total{OF_SERVICE}"), "requests"), (rate(f"fairmesh_proxy_inbound_response_bytes_total{OF_SERVICE}"), "responses")]),
            lines("Attempts by endpoint", "reqps", (f"topk(20, {rate(f'fairmesh_proxy_endpoint_attempts_total{OF_SERVICE}', 'endpoint, region, outcome')})", "{{endpoint}} {{region}} {{outcome}}"), width=12, help="Of proxies with --metrics-per-endpoint."),
            lines("Time of an attempt by endpoint", "s", (f"topk(20, {rate(f'fairmesh_proxy_endpoint_attempt_duration_seconds_total{OF_SERVICE}', 'endpoint')} / ({rate(f'fairmesh_proxy_endpoint_attempts_total{OF_SERVICE}', 'endpoint')} > 0))", "{{endpoint}}"), width=12),
        ]),
    ])


def region():
    responses = 'region:fairmesh_responses:rate2m{from_region=~"$region", service=~"($tenant)/.*"}'
    failed = 'region:fairmesh_responses:rate2m{from_region=~"$region", service=~"($tenant)/.*", class="5xx"}'
    return dashboard("region", "Region", "Calls between regions, health of regions, and what the planner does about it.", [TENANT, REGION], [
        ("Calls", [
            lines("Calls between regions", "reqps", (f"sum by (from_region, to_region) ({responses})", "{{from_region}} to {{to_region}}"), width=12),
            lines("Failed calls between regions", "percentunit", (f"sum by (from_region, to_region) ({failed}) / (sum by (from_region, to_region) ({responses}) > 0)", "{{from_region}} to {{to_region}}"), width=12, steps=FAILURES),
            lines("Share of each region in the calls of a service", "percentunit", (f"sum by (service, to_region) ({responses}) / on (service) group_left () (sum by (service) ({responses}) > 0)", "{{service}} in {{to_region}}"), width=12),
            lines("Bytes between zones", "Bps", ("sum by (region) (fairmesh_traffic_zone_bytes_per_second)", "{{region}}"), width=12, help="Responses from other zones than the caller's, of services that prefer zones."),
        ]),
        ("Network", [
            stat("Failing pairs of zones", "short", 'max(fairmesh_control_zone_probe_pairs{verdict="failing"})', steps=ANY_IS_BAD, help="Ordered pairs of zones between which all probes of agents fail."),
            stat("Degraded pairs of zones", "short", 'max(fairmesh_control_zone_probe_pairs{verdict="degraded"})', steps=ANY_IS_ODD, help="Some agents fail, others pass."),
            stat("Pairs without a recent result", "short", 'max(fairmesh_control_zone_probe_pairs{verdict="stale"})', steps=ANY_IS_ODD),
            lines("Probes between agents", "ops", [(rate("fairmesh_agent_zone_probes_total"), "probes"), (rate("fairmesh_agent_zone_probe_failures_total"), "failed")], width=12),
        ]),
        ("Health", [
            stat("Unchecked regions", "short", "max(fairmesh_control_unchecked_regions)", steps=ANY_IS_BAD, help="Regions with endpoints to check and without a health checker."),
            stat("Ignored verdicts", "short", "max(fairmesh_control_health_panics)", steps=ANY_IS_BAD, help="Pairs of service and region of which so much is unhealthy that callers ignore the verdicts."),
            stat("Health checkers", "short", "max(fairmesh_control_checkers)", help="Regions with an elected health checker."),
            lines("Unhealthy endpoints by region", "short", ("max by (region) (fairmesh_control_unhealthy_endpoints)", "{{region}}"), width=12),
            lines("Probes of endpoints", "ops", [(rate("fairmesh_agent_probes_total"), "probes"), (rate("fairmesh_agent_probe_failures_total"), "failed")], width=12),
            lines("Probes of distances", "ops", [(rate("fairmesh_agent_distance_probes_total"), "probes"), (rate("fairmesh_agent_distance_probe_failures_total"), "failed")], width=12),
        ]),
        ("Planner", [
            stat("Planned services", "short", "max(fairmesh_traffic_planned_services)"),
            stat("Kept tables", "short", "max(fairmesh_traffic_refused_services)", steps=ANY_IS_ODD, help="Services whose region tables stay as they are, since their reports are missing or contradictory."),
            stat("Optimized services", "short", "max(fairmesh_traffic_optimized_services)"),
            lines("Rounds", "ops", [(rate("fairmesh_traffic_rounds_total"), "planned"), (rate("fairmesh_traffic_refusals_total", "reason"), "kept: {{reason}}")], width=12),
            lines("Writes of tables", "ops", [(rate("fairmesh_traffic_table_writes_total"), "written"), (rate("fairmesh_traffic_table_write_failures_total"), "failed")], width=12),
            lines("Services that rings plan in place of the optimizer", "short", ("max by (reason) (fairmesh_traffic_services_left_to_rings)", "{{reason}}"), width=12),
            lines("Calls dropped by region tables", "reqps", (rate('fairmesh_proxy_dropped_calls_total{service=~"($tenant)/.*"}', "service"), "{{service}}"), width=12),
        ]),
    ])


def control():
    return dashboard("control", "Control plane and replicas", "Records from the store to agents: writes, watches, controllers, replicas and copies.", [], [
        ("Now", [
            stat("Control planes", "short", 'count(fairmesh_build_info{process="control"})', steps=UP),
            stat("Revision", "short", "max(fairmesh_control_revision)"),
            stat("Failing controllers", "short", "sum(fairmesh_control_controller_consecutive_failures > bool 0)", steps=ANY_IS_BAD),
            stat("Disconnected replicas", "short", "count(fairmesh_replica_connected == 0) or sum(fairmesh_replica_connected * 0)", steps=ANY_IS_BAD),
            stat("Oldest data", "s", "max(instance:fairmesh_data_age_seconds:max)", steps=AGE),
            stat("Missing in the log of writes", "short", "sum(fairmesh_control_audit_entries_lost_total)", steps=ANY_IS_BAD),
        ]),
        ("Control plane", [
            lines("Writes by outcome", "ops", (rate("fairmesh_control_writes_total", "outcome"), "{{outcome}}")),
            lines("Watches", "short", [("sum(fairmesh_control_watchers)", "watches"), ("sum(fairmesh_control_followed_prefixes)", "prefixes")]),
            lines("Terminated watches", "ops", (rate("fairmesh_control_terminated_watches_total", "reason"), "{{reason}}")),
            lines("Leases and endpoints", "short", [("max(fairmesh_control_leases)", "leases"), ("sum by (state) (fairmesh_control_endpoints)", "{{state}}")]),
            lines("Controllers: failures in a row", "short", ("max by (controller) (fairmesh_control_controller_consecutive_failures)", "{{controller}}"), steps=[(None, "green"), (5, "red")]),
            lines("Controllers: time of the last round", "s", ("max by (controller) (fairmesh_control_controller_last_round_seconds)", "{{controller}}")),
            lines("Controllers: changes", "ops", (rate("fairmesh_control_controller_changes_total", "controller, kind"), "{{controller}} {{kind}}")),
            lines("Store", "bytes", [("max by (instance) (fairmesh_control_store_bytes)", "{{instance}}")], help="0 if the store is in etcd."),
            lines("Mesh-wide limits", "short", [("max(fairmesh_control_mesh_limits)", "limits"), ("max(fairmesh_control_mesh_limit_shares)", "callers with a part")]),
            lines("Reports of calls and load", "ops", [(rate("fairmesh_traffic_reports_total"), "reports"), (rate("fairmesh_traffic_reports_left_out_total"), "left out")]),
            lines("History of calls", "short", [("max(fairmesh_traffic_history_paths)", "paths"), ("max(fairmesh_traffic_history_reporters)", "reporters")]),
            lines("Memory of the history of calls", "bytes", ("max(fairmesh_traffic_history_bytes)", "history")),
        ]),
        ("Replicas and agents", [
            lines("Age of the data", "s", ("topk(12, instance:fairmesh_data_age_seconds:max)", "{{process}} {{instance}}"), steps=AGE),
            lines("Revisions behind the control plane", "short", [("scalar(max(fairmesh_control_revision)) - fairmesh_replica_revision", "replica {{instance}}"), ("fairmesh_replica_revision - fairmesh_replica_acknowledged_revision", "watchers below {{instance}}")], help="A lasting gap below a replica is a slow watcher."),
            lines("Watches by replica", "short", [("fairmesh_replica_watchers", "{{instance}}")]),
            lines("Deltas and snapshots", "ops", [
                (rate("fairmesh_replica_deltas_total"), "deltas of replicas"),
                (rate("fairmesh_replica_snapshots_total"), "snapshots of replicas"),
                (rate("fairmesh_agent_deltas_total"), "deltas of agents"),
                (rate("fairmesh_agent_snapshots_total"), "snapshots of agents"),
            ]),
            lines("Copies on disk", "bytes", ("fairmesh_replica_disk_copy_bytes", "{{instance}}")),
            lines("Failed writes of copies", "ops", [(rate("fairmesh_replica_save_failures_total"), "replicas"), (rate("fairmesh_agent_save_failures_total"), "agents")]),
            lines("Agents: programs and prefixes", "short", [("sum(fairmesh_agent_watchers)", "programs"), ("sum(fairmesh_agent_subscriptions)", "prefixes")]),
            lines("CPU", "short", ('topk(12, instance:fairmesh_cpu_cores:rate2m{process=~"control|replica|agent"})', "{{process}} {{instance}}"), help="Cores."),
            lines("Memory", "bytes", (f'topk(12, process_resident_memory_bytes * on (job, instance) group_left (process) fairmesh_build_info{{process=~"control|replica|agent"}})', "{{process}} {{instance}}")),
        ]),
    ])


def security():
    return dashboard("security", "Security", "Certificates, handshakes, key servers, and who was refused.", [], [
        ("Now", [
            stat("Least time of a certificate", "s", "min((fairmesh_agent_certificate_expiry_timestamp_seconds > 0) - time())", steps=LEFT, help="Of agents with an identity. Certificates of 24 h are renewed after 8 h."),
            stat("Agents without a certificate", "short", "count(fairmesh_agent_certificate_expiry_timestamp_seconds == 0) or sum(fairmesh_agent_connected * 0)", steps=ANY_IS_ODD),
            stat("Proxies without their key server", "short", "sum(fairmesh_proxy_tls_key_server_up == bool 0)", steps=ANY_IS_BAD),
            stat("Missing in the log of writes", "short", "sum(fairmesh_control_audit_entries_lost_total)", steps=ANY_IS_BAD),
        ]),
        ("Callers", [
            lines("Refused by the policy of a service", "reqps", ("topk(12, rate(fairmesh_proxy_inbound_requests_unauthorized_total[$__rate_interval]))", "{{instance}}")),
            lines("Accepted only because of mode audit", "reqps", ("topk(12, rate(fairmesh_proxy_inbound_requests_audited_total[$__rate_interval]))", "{{instance}}")),
            lines("Connections in plaintext", "cps", ("topk(12, rate(fairmesh_proxy_inbound_plaintext_connections_total[$__rate_interval]))", "{{instance}}")),
            lines("Requests by caller", "reqps", ("topk(12, sum by (service, caller) (rate(fairmesh_proxy_inbound_responses_total[$__rate_interval])))", "{{caller}} to {{service}}"), width=12, help="(none) has no identity, (refused) was refused."),
            lines("Handshakes of mutual TLS that callers broke off", "cps", ("topk(12, rate(fairmesh_proxy_inbound_tls_handshake_failures_total[$__rate_interval]))", "{{instance}}"), width=12),
        ]),
        ("TLS of programs", [
            lines("Handshakes", "cps", [(rate("fairmesh_proxy_tls_handshakes_total"), "completed"), (rate("fairmesh_proxy_tls_handshake_failures_total"), "failed"), (rate("fairmesh_proxy_tls_handshakes_refused_total"), "refused")]),
            lines("Signatures by place", "ops", (rate("fairmesh_proxy_tls_signatures_total", "by"), "{{by}}")),
            lines("Time of a signature", "s", (f"{rate('fairmesh_proxy_tls_signature_duration_seconds_total', 'by')} / ({rate('fairmesh_proxy_tls_signatures_total', 'by')} > 0)", "{{by}}")),
            lines("Reloads of certificates", "short", [("sum(increase(fairmesh_proxy_tls_reloads_total[$__rate_interval]))", "loaded"), ("sum(increase(fairmesh_proxy_tls_reload_failures_total[$__rate_interval]))", "failed")]),
            lines("Key servers: signatures by key", "ops", (rate("fairmesh_keyserver_signatures_total", "key"), "{{key}}")),
            lines("Key servers: refusals", "ops", (rate("fairmesh_keyserver_signatures_refused_total", "reason"), "{{reason}}")),
        ]),
        ("Peers beyond their bounds", [
            lines("Connections closed by a limit", "cps", [(f"sum by (reason) (rate(fairmesh_{kind}_listener_connections_closed_total[$__rate_interval]))", f"{kind} {{{{reason}}}}") for kind in ("control", "replica", "agent", "lookaside")], width=12),
            lines("Requests refused by a limit", "reqps", [(f"sum by (reason) (rate(fairmesh_{kind}_listener_requests_refused_total[$__rate_interval]))", f"{kind} {{{{reason}}}}") for kind in ("control", "replica", "agent", "lookaside")], width=12),
        ]),
    ])


def imbalance():
    wasted, used = 'fairmesh_imbalance_wasted_cores{service=~"($tenant)/.*|other"}', 'fairmesh_imbalance_used_cores{service=~"($tenant)/.*|other"}'
    return dashboard("imbalance", "Imbalance", "Cores that uneven load wastes, by service, in the last whole minute.", [
        variable("tenant", "Tenant", "label_values(fairmesh_imbalance_used_cores, service)", r"/^([^\/]+)\//")], [
        ("Now", [
            stat("Wasted cores", "short", f"sum({wasted})"),
            stat("Used cores", "short", f"sum({used})"),
            stat("Wasted of used", "percentunit", f"sum({wasted}) / sum({used})", steps=[(None, "green"), (0.5, "orange"), (1, "red")], help="Cores that would be free if every instance were as busy as the mean."),
            stat("Instances with reports", "short", "sum(fairmesh_imbalance_containers)"),
        ]),
        ("Services", [
            lines("Wasted cores by service", "short", (f"topk(12, {wasted})", "{{service}}"), width=12),
            lines("Used cores by service", "short", (f"topk(12, {used})", "{{service}}"), width=12),
            table("Most wasteful services", [
                ("Wasted cores", "short", wasted, None),
                ("Used cores", "short", used, None),
                ("Wasted of used", "percentunit", f"{wasted} / ({used} > 0)", [(None, "green"), (0.5, "orange"), (1, "red")]),
                ("Instances", "short", 'fairmesh_imbalance_containers{service=~"($tenant)/.*|other"}', None),
            ], {"service": "Service"}, height=10),
        ]),
        ("Reports", [
            lines("Reports by outcome", "ops", (rate("fairmesh_imbalance_usage_reports_total", "outcome"), "{{outcome}}")),
            lines("Reports queued and lost at agents", "short", [("sum(fairmesh_agent_usage_reports_queued)", "queued"), ("sum(increase(fairmesh_agent_usage_reports_dropped_total[$__rate_interval]))", "dropped"), ("sum(increase(fairmesh_agent_usage_reports_rejected_total[$__rate_interval]))", "rejected")]),
            lines("History", "bytes", ("max(fairmesh_imbalance_history_bytes)", "history"), help="A file of the control plane."),
            lines("Failed writes and jumps of the clock", "short", [("sum(increase(fairmesh_imbalance_write_failures_total[$__rate_interval]))", "failed writes"), ("sum(increase(fairmesh_imbalance_clock_jumps_total[$__rate_interval]))", "jumps of the clock")], width=24, height=6),
        ]),
    ])


def texts():
    for made in (fleet(), service(), region(), control(), security(), imbalance()):
        name = made["uid"].removeprefix("fairmesh-")
        yield FOLDER / f"{name}.json", json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def main():
    wanted = dict(texts())
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    stale += [path for path in FOLDER.glob("*.json") if path not in wanted]
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"{path} is not as scripts/dashboards.py writes it: run scripts/dashboards.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.unlink() if path not in wanted else path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
