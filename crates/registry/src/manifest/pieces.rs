/// One document within a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// From its first line to where the next starts.
    pub(super) text: &'a str,
    /// Bytes of the file before it.
    pub(super) offset: usize,
    /// Lines of the file before it.
    pub(super) lines_before: usize,
    /// The line of the file, from 1, where its content starts.
    pub(super) first_line: usize,
}

/// Cuts a file where documents start. YAML 1.2 section 9.1.2 lets no content begin a line with `---`, so that lines
/// are enough to know.
pub(super) fn split(text: &str) -> Vec<Piece<'_>> {
    let mut cutter = Cutter { text, pieces: Vec::new(), offset: 0, line: 0, marked: false, content: None };
    let mut offset = 0;
    for (line, written) in text.split_inclusive('\n').enumerate() {
        let bare = written.trim_end();
        if bare == "---" || bare.starts_with("--- ") {
            if cutter.marked || cutter.content.is_some() {
                cutter.cut(offset, line);
            }
            cutter.marked = true;
            cutter.content = (bare.len() > 3).then_some(line);
        } else if cutter.content.is_none() && is_content(bare) {
            cutter.content = Some(line);
        }
        offset += written.len();
    }
    cutter.cut(text.len(), 0);
    cutter.pieces
}

fn is_content(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with(['#', '%']) && line != "..."
}

struct Cutter<'a> {
    text: &'a str,
    pieces: Vec<Piece<'a>>,
    /// Where the piece in hand starts.
    offset: usize,
    line: usize,
    /// Whether it has a `---`.
    marked: bool,
    /// The line where its content starts, when it has any.
    content: Option<usize>,
}

impl Cutter<'_> {
    fn cut(&mut self, end: usize, next_line: usize) {
        if let Some(content) = self.content.take() {
            self.pieces.push(Piece {
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
    fn documents_start_at_their_marks_and_empty_ones_do_not_count() {
        let text = "# head\n---\na: 1\n---\n# nothing\n---\nb: '---'\n--- # mark\nc: |\n  x\n...\n";
        let found: Vec<_> = split(text).iter().map(|p| (p.first_line, p.lines_before, p.offset)).collect();
        assert_eq!(found, [(3, 0, 0), (7, 5, 30), (8, 7, 43)]);
        assert_eq!(split("\n# only a comment\n"), []);
        assert_eq!(split("a: 1").len(), 1);
    }
}
