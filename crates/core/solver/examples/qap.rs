use solver::effort::Effort;
use solver::problem::*;
use std::time::{Duration, Instant};
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
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let secs: f64 = args[1].parse().unwrap();
    let seed: u64 = args[2].parse().unwrap();
    for path in &args[3..] {
        let v: Vec<i64> =
            std::fs::read_to_string(path).unwrap().split_whitespace().map(|w| w.parse().unwrap()).collect();
        let n = v[0] as usize;
        let (a, b) = v[1..].split_at(n * n);
        let sym = |m: &[i64]| (0..n).all(|i| (0..n).all(|j| m[i * n + j] == m[j * n + i]));
        let (dist, flow) =
            if sym(&b[..n * n]) && (0..n).all(|i| b[i * n + i] == 0) { (b, a) } else { (a, b) };
        let mut s = Spec::default();
        s.resources.push(Resource { overload: 0, is_transient: false });
        for i in 0..n {
            s.places.push(Place { capacity: vec![1], level: vec![1], region: 0, zone: 0 });
            s.items.push(Item { demand: vec![1], start: Some(i), ..Item::default() });
        }
        for i in 0..n {
            for j in 0..i {
                let f = flow[i * n + j] + flow[j * n + i];
                if f != 0 {
                    s.flows.push(Flow { from: i, to: j, amount: f });
                }
            }
        }
        s.distances = Matrix(dist[..n * n].iter().map(|d| *d as i32).collect());
        let p = Problem::new(&s).unwrap();
        let t = Instant::now();
        let r = solver::solve(&p, &mut Clock(cpu(), secs), seed);
        println!("{} {} {:?}", path.rsplit('/').next().unwrap(), r.cost, t.elapsed());
        let _ = Duration::ZERO;
    }
}
