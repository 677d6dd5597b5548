//! Output as one table or one document.

use fairmesh_console::{
    failure::Failure,
    output::{self, Listing, ago},
};
use fairmesh_model::{CallFault, ResponseClass};
use serde_json::{Map, Value, json};

use crate::{
    TopArgs,
    arguments::GroupBy,
    columns,
    groups::{self, Group},
    snapshot::Snapshot,
};

pub(crate) fn print(args: &TopArgs, snapshot: &Snapshot) -> Result<(), Failure> {
    let mut groups = groups::groups(snapshot, args.by, None);
    groups::filter(&mut groups, args.filter.as_deref().unwrap_or_default());
    groups::sort(&mut groups, args.sort, false);
    let mut listing = Listing::new(&columns::headings(args.by));
    for group in &groups {
        listing.add(columns::cells(args.by, group), item(args.by, group));
    }
    listing.why_empty = Some(why_empty(args.by, snapshot.history_ms));
    if snapshot.not_shown > 0 {
        output::note(format!("{} paths with fewer calls are missing: name a service", snapshot.not_shown));
    }
    if snapshot.left_out > 0 {
        let rows = snapshot.left_out;
        output::note(format!("{rows} rows of reports had no room or came too late since history began"));
    }
    listing.print(args.output.format())
}

pub(crate) fn why_empty(by: GroupBy, history_ms: u64) -> String {
    let since = ago(history_ms);
    match by {
        GroupBy::Denied => format!("no call was refused or audited; history begins {since} ago"),
        _ => format!(
            "no calls are reported; history begins {since} ago, and programs report through their agents within 15 s"
        ),
    }
}

fn item(by: GroupBy, group: &Group) -> Value {
    let names = by.headings().iter().zip(&group.names);
    let mut item: Map<String, Value> =
        names.map(|(heading, name)| (heading.to_lowercase(), json!(name))).collect();
    let counts = &group.sum.counts;
    item.insert("calls".into(), json!(counts.calls()));
    if by == GroupBy::Denied {
        return item.into();
    }
    let responses = ResponseClass::ALL.iter().zip(counts.responses()).filter(|(_, calls)| **calls > 0);
    let responses = responses.map(|(class, calls)| json!({"class": class.label(), "calls": calls}));
    let faults = CallFault::ALL.iter().zip(counts.faults()).filter(|(_, calls)| **calls > 0);
    let faults = faults.map(|(fault, calls)| json!({"fault": fault.label(), "calls": calls}));
    let numbers = json!({
        "callsPerSecond": group.sum.rate,
        "failuresPerSecond": group.sum.failures,
        "retriesPerSecond": group.sum.retries,
        "p50Micros": counts.latency_quantile_us(0.5),
        "p99Micros": counts.latency_quantile_us(0.99),
        "responses": responses.collect::<Vec<_>>(),
        "faults": faults.collect::<Vec<_>>(),
        "requestBytes": counts.request_bytes(),
        "responseBytes": counts.response_bytes(),
        "egressBytesPerSecond": group.sum.egress,
        "wastedCores": group.wasted,
        "ageMs": group.sum.age_ms,
    });
    if let Value::Object(numbers) = numbers {
        item.extend(numbers);
    }
    item.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::tests::snapshot;

    #[test]
    fn json_output_of_top_has_responses_and_faults() {
        let groups = groups::groups(&snapshot(), GroupBy::Pairs, None);
        let item = item(GroupBy::Pairs, &groups[1]);
        assert_eq!((&item["caller"], &item["service"]), (&json!("shop/web"), &json!("shop/cart")));
        let responses = json!([{"class": "2xx", "calls": 1_045}, {"class": "5xx", "calls": 55}]);
        assert_eq!(item["responses"], responses);
        assert_eq!((&item["calls"], &item["faults"]), (&json!(1_100), &json!([])));
    }
}
