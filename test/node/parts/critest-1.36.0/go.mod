module github.com/rdma-spec/rdma-spec/test/node/parts/critest-1.36.0

go 1.26.2

// Its program is a test: no package here imports it.
require sigs.k8s.io/cri-tools v1.36.0
