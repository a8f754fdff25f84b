// SPDX-License-Identifier: Apache-2.0

package messages

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/usher-dev/usher/internal/checktest"
)

// nested is a list in a list, and so on.
func nested(depth int) *structpb.ListValue {
	list := &structpb.ListValue{}
	for range depth {
		list = &structpb.ListValue{Values: []*structpb.Value{structpb.NewListValue(list)}}
	}
	return list
}

func TestBounded(t *testing.T) {
	list := func(n int) *structpb.ListValue {
		return &structpb.ListValue{Values: slices.Repeat([]*structpb.Value{{}}, n)}
	}
	wire := func(m proto.Message) []byte { return checktest.Must(proto.Marshal(m))(t) }
	for name, test := range map[string]struct {
		data []byte
		says string
	}{
		"as many as allowed":         {wire(list(10)), ""},
		"one too many":               {wire(list(11)), "too many fields"},
		"too many within another":    {wire(&structpb.ListValue{Values: []*structpb.Value{structpb.NewListValue(list(9))}}), "too many fields"},
		"unknown fields":             {slices.Repeat([]byte{0x78, 1}, 11), "too many fields"}, // The field 15, a number.
		"the end is missing":         {[]byte{0x0a, 5, 1}, "EOF"},
		"no field":                   {[]byte{0x07}, "invalid field"},
		"a message that is a number": {[]byte{0x08, 1}, ""}, // It counts as an unknown field.
	} {
		err := Bounded(10).Unmarshal(mem.BufferSlice{mem.SliceBuffer(test.data)}, &structpb.ListValue{})
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
	if err := Bounded(1000).Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire(nested(200)))}, &structpb.ListValue{}); err == nil ||
		!strings.Contains(err.Error(), "in one another") {
		t.Errorf("deep messages: %v", err)
	}
}

// FuzzCheck: what can be decoded passes, as long as it has few enough fields.
func FuzzCheck(f *testing.F) {
	f.Add(checktest.Must(proto.Marshal(nested(3)))(f))
	f.Add([]byte{0x78, 1, 0x0a, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var list structpb.ListValue
		err := Check(data, list.ProtoReflect().Descriptor(), len(data))
		if decoded := proto.Unmarshal(data, &list); decoded == nil && err != nil && !errors.Is(err, errDeep) {
			t.Errorf("%x can be decoded: %v", data, err)
		}
	})
}
