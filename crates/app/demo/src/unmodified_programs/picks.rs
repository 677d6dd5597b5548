//! Comparison of the endpoints reached by different callers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// The instances that responded, or the reason why a call failed.
pub(super) type Picks = Result<BTreeSet<String>, String>;

/// One call, made by all callers.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) what: String,
    /// Whether only one instance may respond.
    pub(super) one: bool,
    pub(super) predicted: Picks,
    /// Results by caller.
    pub(super) picked: Vec<Picks>,
}

impl Row {
    /// Whether all callers reached the predicted instance, or only predicted candidates.
    pub(super) fn agrees(&self) -> bool {
        let Ok(predicted) = &self.predicted else { return false };
        let agrees = |picks: &Picks| match picks {
            Ok(picks) if self.one => picks == predicted && picks.len() == 1,
            Ok(picks) => !picks.is_empty() && picks.is_subset(predicted),
            Err(_) => false,
        };
        self.picked.iter().all(agrees)
    }

    pub(super) fn cells(&self) -> Vec<String> {
        let cell = |picks: &Picks| match picks {
            Ok(picks) => picks.iter().map(String::as_str).collect::<Vec<_>>().join("\n"),
            Err(_) => "failed".into(),
        };
        let picked = std::iter::once(&self.predicted).chain(&self.picked).map(cell);
        let same = if self.agrees() { "yes" } else { "NO" };
        std::iter::once(self.what.clone()).chain(picked).chain([same.to_owned()]).collect()
    }

    /// Reasons why calls failed.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let all = std::iter::once(&self.predicted).chain(&self.picked);
        all.filter_map(|picks| picks.as_ref().err()).map(|why| format!("failed: {}: {why}", self.what))
    }

    pub(super) fn json(&self, callers: &[&str]) -> Value {
        let value = |picks: &Picks| match picks {
            Ok(picks) => json!(picks),
            Err(why) => json!({ "error": why }),
        };
        let picked =
            callers.iter().zip(&self.picked).map(|(caller, picks)| ((*caller).to_owned(), value(picks)));
        let picked: serde_json::Map<_, _> = picked.collect();
        json!({ "call": self.what, "explained": value(&self.predicted), "picked": picked, "agree": self.agrees() })
    }
}

/// Parses response headers as printed by callers. The instance of each request is in the sidecar's debug header.
pub(super) fn read(heads: &str, calls: usize) -> Picks {
    let mut picks = BTreeSet::new();
    let (mut answers, mut decisions) = (0, 0);
    for line in heads.lines() {
        if let Some(status) = line.strip_prefix("HTTP/1.1 ") {
            answers += 1;
            if !status.starts_with("200") {
                return Err(format!("response with {status}"));
            }
        } else if let Some(decision) = line.strip_prefix("x-fairmesh-decision: ") {
            decisions += 1;
            picks.insert(responding_instance(decision)?);
        }
    }
    if (answers, decisions) != (calls, calls) {
        return Err(format!("{answers} responses and {decisions} decisions for {calls} calls: {heads:?}"));
    }
    Ok(picks)
}

/// Returns the instance that responded, which is that of the last attempt.
fn responding_instance(decision: &str) -> Result<String, String> {
    let last = decision.rsplit_once("; ").and_then(|(_, last)| last.split(' ').next());
    last.map(str::to_owned).ok_or_else(|| format!("no attempt: {decision}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(instances: &[&str]) -> Picks {
        Ok(instances.iter().map(|instance| (*instance).to_owned()).collect())
    }

    #[test]
    fn response_headers_name_responding_instance() {
        let head =
            |tried: &str| format!("HTTP/1.1 200 OK\r\nx-fairmesh-decision: shop/cart; {tried}\r\n\r\n");
        let [a, b] =
            ["a 127.0.0.1:1 eu 1.0ms reset; b 127.0.0.1:2 eu 1.0ms 200", "c 127.0.0.1:3 eu 0.1ms 200"];
        assert_eq!(read(&(head(a) + &head(b)), 2), picks(&["b", "c"]));
        assert!(read(&head(a), 2).is_err(), "one is missing");
        assert!(read("HTTP/1.1 503 Service Unavailable\r\n", 1).is_err());
        assert!(read("HTTP/1.1 200 OK\r\nx-fairmesh-decision: shop/cart\r\n", 1).is_err());
    }

    #[test]
    fn demo_reports_caller_that_reached_unpredicted_endpoint() {
        let row = |one, predicted: &[&str], picked: &[&[&str]]| {
            let picked = picked.iter().map(|instances| picks(instances)).collect();
            Row { what: String::new(), one, predicted: picks(predicted), picked }.agrees()
        };
        assert!(row(true, &["a"], &[&["a"], &["a"]]));
        assert!(!row(true, &["a"], &[&["a"], &["b"]]));
        assert!(!row(true, &["a", "b"], &[&["a", "b"]]), "a shard has one owner");
        assert!(row(false, &["a", "b"], &[&["a"], &["a", "b"]]));
        assert!(!row(false, &["a", "b"], &[&["a"], &["c"]]));
        assert!(!row(false, &["a"], &[&[]]), "no call was picked");
        let failed = vec![Err("refused".to_owned())];
        let failed = Row { what: "x".into(), one: true, predicted: picks(&["a"]), picked: failed };
        assert!(!failed.agrees() && failed.problems().count() == 1);
    }
}
