//! Files of whole numbers, which may be compressed with xz.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// The numbers of a file, one after the other.
pub struct Numbers {
    file: String,
    values: std::vec::IntoIter<i64>,
}

impl Numbers {
    /// Reads a file, or the same name with `.xz`.
    ///
    /// # Errors
    /// If there is neither, or something in it is not a number.
    pub fn read(path: &Path) -> Result<Self> {
        let file = path.display().to_string();
        let text = text(path).with_context(|| format!("cannot read {file}"))?;
        Self::parse(&file, &text)
    }

    /// The numbers of a text, which errors call `file`.
    ///
    /// # Errors
    /// If something in it is not a number.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let value = |word: &str| word.parse().with_context(|| format!("{file}: {word:?} is not a number"));
        let values: Vec<i64> = text.split_whitespace().map(value).collect::<Result<_>>()?;
        Ok(Self { file: file.to_owned(), values: values.into_iter() })
    }

    /// The next number.
    ///
    /// # Errors
    /// If the file ends before it.
    pub fn number(&mut self) -> Result<i64> {
        self.values.next().with_context(|| format!("{} ends too early", self.file))
    }

    /// The next number, as a count or an index.
    ///
    /// # Errors
    /// If the file ends before it, or it is negative.
    pub fn index(&mut self) -> Result<usize> {
        let value = self.number()?;
        usize::try_from(value).with_context(|| format!("{}: {value} is negative", self.file))
    }

    /// So many numbers.
    ///
    /// # Errors
    /// If the file ends before them.
    pub fn take(&mut self, count: usize) -> Result<Vec<i64>> {
        (0..count).map(|_| self.number()).collect()
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// If something is.
    pub fn end(self) -> Result<()> {
        let left = self.values.len();
        ensure!(left == 0, "{} has {left} numbers too many", self.file);
        Ok(())
    }
}

fn text(path: &Path) -> Result<String> {
    let compressed = path.with_added_extension("xz");
    if path.exists() || !compressed.exists() {
        return Ok(fs::read_to_string(path)?);
    }
    let output = Command::new("xz").arg("-dc").arg(&compressed).output();
    let output = output.context("xz does not run: install xz-utils")?;
    if !output.status.success() {
        bail!("xz: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_short_or_too_long_or_no_numbers_is_named() {
        let words = |result: Result<()>| result.unwrap_err().to_string();
        let mut short = Numbers::parse("a", "1 2").unwrap();
        assert_eq!(short.take(2).unwrap(), [1, 2]);
        assert_eq!(words(short.number().map(drop)), "a ends too early");
        assert_eq!(words(Numbers::parse("b", "1 2").unwrap().end()), "b has 2 numbers too many");
        assert_eq!(words(Numbers::parse("c", "1 x").map(drop)), "c: \"x\" is not a number");
        assert_eq!(words(Numbers::parse("d", "-1").unwrap().index().map(drop)), "d: -1 is negative");
    }
}
