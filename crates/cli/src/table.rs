//! Tables: columns as wide as their widest cell.

use unicode_width::UnicodeWidthStr;

/// Lays out `rows` under `titles`, two spaces between columns. Control characters are escaped.
#[must_use]
pub fn render<const COLUMNS: usize>(titles: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let titles = titles.map(str::to_owned);
    let rows: Vec<_> =
        std::iter::once(&titles).chain(rows).map(|row| row.each_ref().map(printable)).collect();
    let widths: [usize; COLUMNS] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].width()).max().unwrap_or_default());
    rows.iter().map(|row| line(row, &widths)).collect()
}

/// `text` on one line, cut to `limit` columns.
#[must_use]
pub fn shorten(text: &str, limit: usize) -> String {
    let text = printable(text);
    if text.width() <= limit {
        return text;
    }
    let mut short = String::new();
    for character in text.chars() {
        short.push(character);
        if short.width() >= limit {
            short.pop();
            break;
        }
    }
    format!("{short}…")
}

/// `text` with its control characters escaped, on one line.
pub fn printable(text: impl AsRef<str>) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.as_ref().chars().map(escaped).collect()
}

fn line(row: &[String], widths: &[usize]) -> String {
    let pad = |(cell, width): (&String, &usize)| format!("{cell}{}", " ".repeat(width - cell.width()));
    let text = row.iter().zip(widths).map(pad).collect::<Vec<_>>().join("  ");
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["h1".to_owned(), "up".to_owned()], ["h10".to_owned(), "down".to_owned()]];
        assert_eq!(render(["HOST", "NODE"], &rows), "HOST  NODE\nh1    up\nh10   down\n");
    }

    #[test]
    fn wide_and_combining_characters_keep_columns_aligned() {
        let rows = [["作業", "x"], ["e\u{301}", "x"], ["a\n\x1b[2J", "x"]].map(|row| row.map(str::to_owned));
        let expected =
            "A                X\n作業             x\ne\u{301}                x\na\\n\\u{1b}[2J     x\n";
        let rendered = render(["A", "X"], &rows);
        let column: Vec<_> = rendered.lines().map(|line| line[..line.len() - 1].width()).collect();
        assert!(column.iter().all(|width| *width == column[0]), "{rendered}");
        assert_eq!(
            rendered.split_whitespace().collect::<Vec<_>>(),
            expected.split_whitespace().collect::<Vec<_>>()
        );
    }

    #[test]
    fn shortens_long_text() {
        assert_eq!(shorten("abcd", 4), "abcd");
        assert_eq!(shorten("abcde", 4), "abc…");
        assert_eq!(shorten("作業作業", 4), "作…");
    }
}
