/// The text of one document within a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DocumentText<'a> {
    /// The text from the document's first line to the start of the next document.
    pub(super) text: &'a str,
    /// Number of bytes in the file before the document.
    pub(super) offset: usize,
    /// Number of lines in the file before the document.
    pub(super) lines_before: usize,
    /// Line of the file, from 1, at which the document's content starts.
    pub(super) first_line: usize,
}

/// Splits a file into documents. Splitting by lines is exact, because YAML 1.2 section 9.1.2 forbids content lines
/// that begin with `---`.
pub(super) fn split(text: &str) -> Vec<DocumentText<'_>> {
    let mut splitter =
        Splitter { text, pieces: Vec::new(), offset: 0, line: 0, marked: false, content: None };
    let mut offset = 0;
    for (line, written) in text.split_inclusive('\n').enumerate() {
        let bare = written.trim_end();
        if bare == "---" || bare.starts_with("--- ") {
            if splitter.marked || splitter.content.is_some() {
                splitter.finish(offset, line);
            }
            splitter.marked = true;
            splitter.content = (bare.len() > 3).then_some(line);
        } else if splitter.content.is_none() && is_content(bare) {
            splitter.content = Some(line);
        }
        offset += written.len();
    }
    splitter.finish(text.len(), 0);
    splitter.pieces
}

fn is_content(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with(['#', '%']) && line != "..."
}

struct Splitter<'a> {
    text: &'a str,
    pieces: Vec<DocumentText<'a>>,
    /// Offset at which the current document starts.
    offset: usize,
    line: usize,
    /// Whether the current document begins with `---`.
    marked: bool,
    /// Line at which the content starts, if there is any.
    content: Option<usize>,
}

impl Splitter<'_> {
    fn finish(&mut self, end: usize, next_line: usize) {
        if let Some(content) = self.content.take() {
            self.pieces.push(DocumentText {
                text: &self.text[self.offset..end],
                offset: self.offset,
                lines_before: self.line,
                first_line: content + 1,
            });
        }
        (self.offset, self.line) = (end, next_line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_documents_start_at_separators_and_empty_ones_are_skipped() {
        let text = "# head\n---\na: 1\n---\n# nothing\n---\nb: '---'\n--- # mark\nc: |\n  x\n...\n";
        let found: Vec<_> = split(text).iter().map(|p| (p.first_line, p.lines_before, p.offset)).collect();
        assert_eq!(found, [(3, 0, 0), (7, 5, 30), (8, 7, 43)]);
        assert_eq!(split("\n# only a comment\n"), []);
        assert_eq!(split("a: 1").len(), 1);
    }
}
