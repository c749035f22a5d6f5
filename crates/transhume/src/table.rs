//! Tables for people: columns as wide as their widest cell.

/// Lays out `rows` under `titles`, two blanks between columns.
#[must_use]
pub fn render<const COLUMNS: usize>(titles: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let titles = titles.map(str::to_owned);
    let all = || std::iter::once(&titles).chain(rows);
    let widths: [usize; COLUMNS] =
        std::array::from_fn(|column| all().map(|row| row[column].chars().count()).max().unwrap_or_default());
    all().map(|row| line(row, &widths)).collect()
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    let text = cells.collect::<Vec<_>>().join("  ");
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["h1".to_owned(), "up".to_owned()], ["h10".to_owned(), "down".to_owned()]];
        assert_eq!(super::render(["HOST", "NODE"], &rows), "HOST  NODE\nh1    up\nh10   down\n");
    }
}
