module github.com/usher-dev/usher/conformance

go 1.26.0

replace github.com/usher-dev/usher => ../

require github.com/usher-dev/usher v0.0.0

require (
	github.com/google/go-cmp v0.7.0 // indirect
	golang.org/x/sync v0.19.0 // indirect
)
