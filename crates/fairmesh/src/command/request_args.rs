//! Parsers of request arguments.

/// Parses a path.
pub(super) fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        return Ok(text.to_owned());
    }
    Err(format!("a path starts with a slash; write '/{text}'"))
}

/// Parses a header; its name is lowercased.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once([':', '='])
        .ok_or_else(|| format!("'{text}' is not a header; write NAME: VALUE, such as 'x-tier: gold'"))?;
    Ok((name.trim().to_lowercase(), value.trim().to_owned()))
}
