//! Suggestions for misspelt words: "did you mean …?"

/// Hint for a misspelt word: the nearest word in `right`, or all of `right` if none is near.
pub fn hint(wrong: &str, right: &[&str]) -> String {
    let nearest = right.iter().map(|word| (distance(wrong, word), word)).min();
    match nearest {
        // Up to a third of the letters may differ, and at least one.
        Some((distance, word)) if distance <= (wrong.chars().count() / 3).max(1) => {
            format!("did you mean '{word}'?")
        }
        Some(_) => format!("write one of {}", right.join(", ")),
        None => "leave it out: nothing is allowed here".into(),
    }
}

/// Edit distance, ignoring case. Counts substituted, inserted, deleted and transposed letters (optimal string
/// alignment).
fn distance(a: &str, b: &str) -> usize {
    let [a, b] = [a, b].map(|word| word.to_lowercase().chars().collect::<Vec<_>>());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let above = &rows[i - 1];
            let changed = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_distant_ones_are_not() {
        let fields = ["service", "timeout", "localOnly"];
        assert_eq!(hint("timout", &fields), "did you mean 'timeout'?");
        assert_eq!(hint("localonly", &fields), "did you mean 'localOnly'?");
        assert_eq!(hint("sirvice", &fields), "did you mean 'service'?");
        assert!(hint("replicas", &fields).contains("service, timeout"));
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("mtach", "match"), 1);
    }
}
