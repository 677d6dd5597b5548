//! Sizes in command-line arguments.

use fairmesh_model::Invalid;

/// Units and their bytes: decimal units by SI, binary units by IEC 80000-13.
const UNITS: [(&str, u64); 8] = [
    ("", 1),
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// Parses a size in bytes: a whole number, with or without a unit, such as `1048576`, `1MB` or `64KiB`.
pub(crate) fn read_size(text: &str) -> Result<u64, Invalid> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()));
    let size =
        number.parse::<u64>().ok().zip(unit).and_then(|(number, (_, bytes))| number.checked_mul(*bytes));
    size.ok_or_else(|| {
        let hint = "write a whole number of bytes, or with KB, MB, GB, KiB, MiB or GiB, such as 1MB";
        Invalid::new("", format!("'{text}' is not a size"), hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_sizes_parse_with_or_without_units() {
        for (text, bytes) in
            [("0", 0), ("1048576", 1 << 20), ("1MB", 1_000_000), ("64 KiB", 65_536), ("2gib", 2 << 30)]
        {
            assert_eq!(read_size(text).ok(), Some(bytes), "{text}");
        }
        for wrong in ["", "MB", "1.5MB", "-1", "1 TB", "99999999999999999999", "99999999999GB"] {
            assert!(read_size(wrong).is_err(), "{wrong}");
        }
    }
}
