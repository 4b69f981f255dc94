use onnxc::*;
fn main() {
    for dir in std::env::args().skip(1) {
        let path = format!("{dir}/model.onnx");
        let bytes = bytes::Bytes::from(std::fs::read(&path).unwrap());
        let proto = onnxc_proto::decode(bytes, &Default::default()).unwrap();
        let t0 = std::time::Instant::now();
        let mut import = match import::import(&proto, &Default::default(), &import::NoExternalData) {
            Ok(i) => i,
            Err(errors) => {
                println!("{dir}: {} errors", errors.len());
                for e in errors.iter().take(6) {
                    println!("   {e}");
                }
                continue;
            }
        };
        let check = |graph: &graph::Graph, what: &str| {
            let set = format!("{dir}/test_data_set_0");
            let load = |name: String| -> graph::Tensor {
                let bytes = bytes::Bytes::from(std::fs::read(format!("{set}/{name}")).unwrap());
                let proto = onnxc_proto::decode_tensor(bytes, &Default::default()).unwrap();
                import::dense_tensor(&proto).unwrap()
            };
            let inputs: Vec<_> = (0..graph.inputs.len()).map(|i| load(format!("input_{i}.pb"))).collect();
            match interp::run(graph, &inputs) {
                Ok(outs) => {
                    for (i, out) in outs.iter().enumerate() {
                        let want = load(format!("output_{i}.pb"));
                        let (a, b) = match (out.to_f64s(), want.to_f64s()) {
                            (Some(a), Some(b)) => (a, b),
                            _ => (
                                out.to_i64s().unwrap().iter().map(|&v| v as f64).collect(),
                                want.to_i64s().unwrap().iter().map(|&v| v as f64).collect(),
                            ),
                        };
                        let bad =
                            a.iter().zip(&b).filter(|(a, b)| (*a - *b).abs() > 1e-4 + 1e-3 * b.abs()).count();
                        println!(
                            "{dir} {what}: output {i} {:?} vs {:?}: {bad} bad of {}",
                            out.shape,
                            want.shape,
                            a.len()
                        );
                    }
                }
                Err(e) => println!("{dir} {what}: {e}"),
            }
        };
        check(&import.graph, "import");
        let t1 = std::time::Instant::now();
        if let Err(e) = pass::run_all(&mut import.graph, &Default::default(), &mut |_, _, _| {}) {
            println!("{dir}: pass {e}");
            continue;
        }
        println!(
            "{dir}: passes {:?} nodes {} (since import {:?})",
            t1.elapsed(),
            import.graph.order.len(),
            t1 - t0
        );
        if let Err(e) = graph::verify::verify(&import.graph) {
            println!("{dir}: verify {e:?}");
        }
        let mut counts = std::collections::BTreeMap::new();
        for &n in &import.graph.order {
            *counts.entry(import.graph.nodes[n].op.name()).or_insert(0) += 1;
        }
        println!("    {counts:?}");
        check(&import.graph, "passes");
    }
}
