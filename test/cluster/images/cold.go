// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strconv"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/time/rate"
)

const (
	// coldRepository has the images that are large and served slowly.
	coldRepository = "cold"
	// coldSize is how much noise, in bytes, they hold, and coldRate how much of them is served a
	// second: a pull takes at least eight seconds.
	coldSize = 200 << 20
	coldRate = 25 << 20
	// coldPiece is how much is sent at once.
	coldPiece = 64 << 10
)

// cold is a layer of noise that is not stored: it is generated whenever it is read. Hundreds of MiB in
// memory would cost the callers of other stories seconds of CPU time.
type cold struct {
	seed [32]byte
	hash v1.Hash
	size int64
}

// newCold makes the layer for a tag. No other tag has the same.
func newCold(tag string) (layer cold, err error) {
	layer.seed = sha256.Sum256([]byte(tag))
	layer.hash, layer.size, err = v1.SHA256(layer.read())
	return layer, err
}

// read returns an archive with one file.
func (l cold) read() io.Reader {
	var header bytes.Buffer
	_ = tar.NewWriter(&header).WriteHeader(&tar.Header{Name: "noise", Mode: 0o644, Size: coldSize}) // cannot fail
	end := make([]byte, 1<<10)
	return io.MultiReader(&header, io.LimitReader(rand.NewChaCha8(l.seed), coldSize), bytes.NewReader(end))
}

func (l cold) Digest() (v1.Hash, error)             { return l.hash, nil }
func (l cold) DiffID() (v1.Hash, error)             { return l.hash, nil }
func (l cold) Size() (int64, error)                 { return l.size, nil }
func (l cold) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }
func (l cold) Compressed() (io.ReadCloser, error)   { return io.NopCloser(l.read()), nil }
func (l cold) Uncompressed() (io.ReadCloser, error) { return l.Compressed() }

// withCold returns a registry that has the cold layers, by digest, in addition to pushed ones, and
// sends them slowly.
func withCold(registry http.Handler, layers map[string]cold) http.Handler {
	pace := rate.NewLimiter(coldRate, coldPiece)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		layer, ok := layers[path.Base(r.URL.Path)]
		if !ok {
			registry.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(layer.size, 10))
		if r.Method == http.MethodGet {
			_, _ = io.Copy(slow{w, r.Context(), pace}, layer.read()) // A client that hangs up needs no more.
		}
	})
}

type slow struct {
	http.ResponseWriter
	ctx  context.Context
	pace *rate.Limiter
}

func (s slow) Write(data []byte) (sent int, err error) {
	for piece := range slices.Chunk(data, coldPiece) {
		if err := s.pace.WaitN(s.ctx, len(piece)); err != nil {
			return sent, err
		}
		n, err := s.ResponseWriter.Write(piece)
		if sent += n; err != nil {
			return sent, err
		}
	}
	return sent, nil
}
