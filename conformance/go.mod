module github.com/usher-dev/usher/conformance

go 1.26.0

replace github.com/usher-dev/usher => ..

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/miekg/dns v1.1.72
	github.com/usher-dev/usher v0.0.0-00010101000000-000000000000
	golang.org/x/sys v0.40.0
	k8s.io/utils v0.0.0-20260210185600-b8788abfbbc2
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	golang.org/x/mod v0.32.0 // indirect
	golang.org/x/net v0.49.0 // indirect
	golang.org/x/sync v0.19.0 // indirect
	golang.org/x/tools v0.41.0 // indirect
)
