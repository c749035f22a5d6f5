//! A slab: objects by index, with reused indices.

/// A table of objects.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// The index that the next `insert` will use.
    pub fn next_index(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }

    pub fn insert(&mut self, object: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(object);
                index
            }
            None => {
                self.slots.push(Some(object));
                self.slots.len() as u32 - 1
            }
        }
    }

    pub fn remove(&mut self, index: u32) -> Option<T> {
        let object = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(object)
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.is_some()).map(|(index, _)| index as u32)
    }
}
