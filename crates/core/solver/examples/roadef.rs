use solver::effort::Effort;
use solver::problem::*;
struct Clock(f64, f64);
#[repr(C)]
struct Ts(i64, i64);
unsafe extern "C" {
    fn clock_gettime(c: i32, t: *mut Ts) -> i32;
}
fn cpu() -> f64 {
    let mut t = Ts(0, 0);
    unsafe {
        clock_gettime(3, &mut t);
    }
    t.0 as f64 + t.1 as f64 * 1e-9
}
impl Effort for Clock {
    fn spent(&mut self, _: u64) -> f64 {
        (cpu() - self.0) / self.1
    }
}
fn numbers(path: &str) -> Vec<i64> {
    let text = if std::path::Path::new(path).exists() {
        std::fs::read(path).unwrap()
    } else {
        std::process::Command::new("xzcat").arg(format!("{path}.xz")).output().unwrap().stdout
    };
    String::from_utf8(text).unwrap().split_whitespace().map(|w| w.parse().unwrap()).collect()
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let secs: f64 = args[1].parse().unwrap();
    let dir = &args[2];
    for name in &args[3..] {
        let v = numbers(&format!("{dir}/model_{name}.txt"));
        let start = numbers(&format!("{dir}/assignment_{name}.txt"));
        let mut it = v.into_iter();
        let mut n = || it.next().unwrap();
        let mut s = Spec::default();
        let r = n() as usize;
        for _ in 0..r {
            let t = n();
            let w = n();
            s.resources.push(Resource { overload: w, is_transient: t == 1 });
        }
        let m = n() as usize;
        let mut reloc = vec![];
        for _ in 0..m {
            let zone = n() as usize;
            let region = n() as usize;
            let capacity: Vec<i64> = (0..r).map(|_| n()).collect();
            let level = (0..r).map(|_| n()).collect();
            for _ in 0..m {
                reloc.push(n() as i32);
            }
            s.places.push(Place { capacity, level, region, zone });
        }
        let sv = n() as usize;
        for _ in 0..sv {
            let spread = n() as usize;
            let k = n();
            let near = (0..k).map(|_| n() as usize).collect();
            s.sets.push(Set { members: vec![], is_apart: true, regions: spread, near, is_counted: true });
        }
        let p = n() as usize;
        let mut pmc = vec![];
        for i in 0..p {
            let set = n() as usize;
            s.sets[set].members.push(i);
            let demand = (0..r).map(|_| n()).collect();
            pmc.push(n());
            s.items.push(Item { demand, start: Some(start[i] as usize), move_cost: 0, places: None });
        }
        let b = n();
        for _ in 0..b {
            let of = n() as usize;
            let per = n() as usize;
            let factor = n();
            let weight = n();
            s.balances.push(Balance { of, per, factor, weight });
        }
        let wp = n();
        let ws = n();
        let wm = n();
        for (item, c) in s.items.iter_mut().zip(pmc) {
            item.move_cost = c * wp;
        }
        s.relocation = Matrix(reloc.into_iter().map(|c| c * wm as i32).collect());
        s.disturbance = ws;
        let problem = Problem::new(&s).unwrap();
        let at: Vec<Option<usize>> = start.iter().map(|x| Some(*x as usize)).collect();
        let before = solver::evaluate(&problem, &at);
        let t = std::time::Instant::now();
        let after = solver::solve(&problem, &mut Clock(cpu(), secs), 1);
        println!(
            "{name} items {p} places {m} before {} ({}) after {} ({}) {:?}",
            before.cost,
            before.violations,
            after.cost,
            after.violations,
            t.elapsed()
        );
    }
}
