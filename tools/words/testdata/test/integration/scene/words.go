// SPDX-License-Identifier: Apache-2.0

package scene

var words = []Word{{Name: "make", Args: "OBJECT", Does: "creates an object", Run: nil}}
