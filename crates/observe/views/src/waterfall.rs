use std::collections::BTreeMap;

use fairmesh_wire::v1::TraceSpan;

/// Orders spans so that each follows its parent, and adds their depths. Spans without a known parent are roots.
pub fn waterfall(spans: &[TraceSpan]) -> Vec<(usize, &TraceSpan)> {
    // A proxy exports its own span for the request of a caller's attempt: both may have the same id.
    let is_known = |id: u64, child: &TraceSpan| {
        id != 0 && spans.iter().any(|span| span.id == id && !std::ptr::eq(span, child))
    };
    let mut children = BTreeMap::<u64, Vec<&TraceSpan>>::new();
    for span in spans {
        let parent = if is_known(span.parent, span) { span.parent } else { 0 };
        children.entry(parent).or_default().push(span);
    }
    let mut ordered = Vec::new();
    let mut stack: Vec<(usize, &TraceSpan)> = Vec::new();
    let push = |stack: &mut Vec<_>, depth, children: Option<Vec<_>>| {
        stack.extend(children.into_iter().flatten().rev().map(|span| (depth, span)));
    };
    push(&mut stack, 0, children.remove(&0));
    loop {
        while let Some((depth, span)) = stack.pop() {
            ordered.push((depth, span));
            push(&mut stack, depth + 1, children.remove(&span.id));
        }
        // Spans that name each other as parents, which no process exports, are shown nevertheless.
        let Some((_, rest)) = children.pop_first() else { return ordered };
        push(&mut stack, 0, Some(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: u64, parent: u64, (start_us, duration_us): (u64, u64)) -> TraceSpan {
        TraceSpan { id, parent, start_us, duration_us, ..TraceSpan::default() }
    }

    #[test]
    fn trace_output_lists_all_spans_after_their_parents() {
        let spans = [
            span(1, 0, (0, 100)),
            span(2, 1, (10, 40)),
            span(3, 1, (50, 50)),
            span(4, 2, (20, 10)),
            span(5, 99, (60, 10)),
            span(6, 7, (70, 1)),
            span(7, 6, (70, 1)),
            span(8, 8, (80, 1)),
        ];
        let order: Vec<_> = waterfall(&spans).iter().map(|(depth, span)| (*depth, span.id)).collect();
        assert_eq!(order[..6], [(0, 1), (1, 2), (2, 4), (1, 3), (0, 5), (0, 8)]);
        assert_eq!(order.len(), spans.len());
    }
}
