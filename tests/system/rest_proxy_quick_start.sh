# Requests of Confluent's documentation of the REST Proxy, run by test_rest_proxy_curl.py with the curl of the machine.
# Verbatim from the quick start (v2), and from the README and the OpenAPI description of the proxy (v3). Replaced are
# http://localhost:8082, below which v2 lies here at /rest-proxy, the id of the cluster, and what ~/.curlrc adds: a key.
#= is what the answer has, as documented; ... stands for anything. #~ is a text in it. #! is the status if it is not 200.

# ---- v2: JSON ----

curl -X POST -H "Content-Type: application/vnd.kafka.json.v2+json" \
      --data '{"records":[{"value":{"foo":"bar"}}]}' "http://localhost:8082/topics/jsontest"
#= {"offsets":[{"partition":0,"offset":0,"error_code":null,"error":null}],"key_schema_id":null,"value_schema_id":null}

curl -X POST -H "Content-Type: application/vnd.kafka.v2+json" \
      --data '{"name": "my_consumer_instance", "format": "json", "auto.offset.reset": "earliest"}' \
      http://localhost:8082/consumers/my_json_consumer_group
#= {"instance_id":"my_consumer_instance","base_uri":"http://localhost:8082/consumers/my_json_consumer_group/instances/my_consumer_instance"}

curl -X POST -H "Content-Type: application/vnd.kafka.v2+json" --data '{"topics":["jsontest"]}' \
  http://localhost:8082/consumers/my_json_consumer_group/instances/my_consumer_instance/subscription
#! 204

curl -X GET -H "Accept: application/vnd.kafka.json.v2+json" \
  http://localhost:8082/consumers/my_json_consumer_group/instances/my_consumer_instance/records
#= [{"topic":"jsontest","key":null,"value":{"foo":"bar"},"partition":0,"offset":0}]

curl -X DELETE -H "Content-Type: application/vnd.kafka.v2+json" \
  http://localhost:8082/consumers/my_json_consumer_group/instances/my_consumer_instance
#! 204

# ---- v2: Avro ----

curl -X POST -H "Content-Type: application/vnd.kafka.avro.v2+json" \
      -H "Accept: application/vnd.kafka.v2+json" \
      --data '{"value_schema": "{\"type\": \"record\", \"name\": \"User\", \"fields\": [{\"name\": \"name\", \"type\": \"string\"}]}", "records": [{"value": {"name": "testUser"}}]}' \
      "http://localhost:8082/topics/avrotest"
#= {"offsets":[{"partition":0,"offset":0,"error_code":null,"error":null}],"key_schema_id":null,"value_schema_id":"..."}

curl -X POST -H "Content-Type: application/vnd.kafka.avro.v2+json" \
      -H "Accept: application/vnd.kafka.v2+json" \
      --data '{"key_schema": "{\"name\":\"user_id\"  ,\"type\": \"int\"   }", "value_schema": "{\"type\": \"record\", \"name\": \"User\", \"fields\": [{\"name\": \"name\", \"type\": \"string\"}]}", "records": [{"key" : 1 , "value": {"name": "testUser"}}]}' \
      "http://localhost:8082/topics/avrokeytest2"
#= {"offsets":[{"partition":0,"offset":0,"error_code":null,"error":null}],"key_schema_id":"...","value_schema_id":"..."}

curl -X POST  -H "Content-Type: application/vnd.kafka.v2+json" \
      --data '{"name": "my_consumer_instance", "format": "avro", "auto.offset.reset": "earliest"}' \
      http://localhost:8082/consumers/my_avro_consumer_group
#= {"instance_id":"my_consumer_instance","base_uri":"http://localhost:8082/consumers/my_avro_consumer_group/instances/my_consumer_instance"}

curl -X POST -H "Content-Type: application/vnd.kafka.v2+json" --data '{"topics":["avrotest"]}' \
      http://localhost:8082/consumers/my_avro_consumer_group/instances/my_consumer_instance/subscription
#! 204

curl -X GET -H "Accept: application/vnd.kafka.avro.v2+json" \
      http://localhost:8082/consumers/my_avro_consumer_group/instances/my_consumer_instance/records
#= [{"topic":"avrotest","key":null,"value":{"name":"testUser"},"partition":0,"offset":0}]

curl -X DELETE -H "Content-Type: application/vnd.kafka.v2+json" \
      http://localhost:8082/consumers/my_avro_consumer_group/instances/my_consumer_instance
#! 204

# ---- v2: binary ----

curl -X POST -H "Content-Type: application/vnd.kafka.binary.v2+json" \
      -H "Accept: application/vnd.kafka.v2+json" \
      --data '{"records":[{"value":"S2Fma2E="}]}' "http://localhost:8082/topics/binarytest"
#= {"offsets":[{"partition":0,"offset":0,"error_code":null,"error":null}],"key_schema_id":null,"value_schema_id":null}

curl -X POST -H "Content-Type: application/vnd.kafka.v2+json" \
      --data '{"name": "my_consumer_instance", "format": "binary", "auto.offset.reset": "earliest"}' \
      http://localhost:8082/consumers/my_binary_consumer_group
#= {"instance_id":"my_consumer_instance","base_uri":"http://localhost:8082/consumers/my_binary_consumer_group/instances/my_consumer_instance"}

curl -X POST -H "Content-Type: application/vnd.kafka.v2+json" --data '{"topics":["binarytest"]}' \
      http://localhost:8082/consumers/my_binary_consumer_group/instances/my_consumer_instance/subscription
#! 204

curl -X GET -H "Accept: application/vnd.kafka.binary.v2+json" \
      http://localhost:8082/consumers/my_binary_consumer_group/instances/my_consumer_instance/records
#= [{"key":null,"value":"S2Fma2E=","partition":0,"offset":0,"topic":"binarytest"}]

curl -X DELETE -H "Content-Type: application/vnd.kafka.v2+json" \
      http://localhost:8082/consumers/my_binary_consumer_group/instances/my_consumer_instance
#! 204

# ---- v2: Protobuf ----

curl -X POST -H "Content-Type: application/vnd.kafka.protobuf.v2+json" \
   -H "Accept: application/vnd.kafka.v2+json" \
   --data '{"value_schema": "syntax=\"proto3\"; message User { string name = 1; }", "records": [{"value": {"name": "testUser"}}]}' \
   "http://localhost:8082/topics/protobuftest"
#= {"offsets":[{"partition":0,"offset":0,"error_code":null,"error":null}],"key_schema_id":null,"value_schema_id":"..."}

curl -X POST  -H "Content-Type: application/vnd.kafka.protobuf.v2+json" \
      --data '{"name": "my_consumer_instance", "format": "protobuf", "auto.offset.reset": "earliest"}' \
      http://localhost:8082/consumers/my_protobuf_consumer_group
#= {"instance_id":"my_consumer_instance","base_uri":"http://localhost:8082/consumers/my_protobuf_consumer_group/instances/my_consumer_instance"}

curl -X POST -H "Content-Type: application/vnd.kafka.protobuf.v2+json" --data '{"topics":["protobuftest"]}' \
      http://localhost:8082/consumers/my_protobuf_consumer_group/instances/my_consumer_instance/subscription
#! 204

curl -X GET -H "Accept: application/vnd.kafka.protobuf.v2+json" \
      http://localhost:8082/consumers/my_protobuf_consumer_group/instances/my_consumer_instance/records
#= [{"key":null,"value":{"name":"testUser"},"partition":0,"offset":0,"topic":"protobuftest"}]

curl -X DELETE -H "Content-Type: application/vnd.kafka.protobuf.v2+json" \
      http://localhost:8082/consumers/my_protobuf_consumer_group/instances/my_consumer_instance
#! 204

# ---- v2: JSON Schema ----

curl -X POST -H "Content-Type: application/vnd.kafka.jsonschema.v2+json" \
   -H "Accept: application/vnd.kafka.v2+json" \
   --data '{"value_schema": "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"}}}", "records": [{"value": {"name": "testUser"}}]}' \
   "http://localhost:8082/topics/jsonschematest"
#= {"offsets":[{"partition":0,"offset":0,"error_code":null,"error":null}],"key_schema_id":null,"value_schema_id":"..."}

curl -X POST  -H "Content-Type: application/vnd.kafka.jsonschema.v2+json" \
      --data '{"name": "my_consumer_instance", "format": "jsonschema", "auto.offset.reset": "earliest"}' \
      http://localhost:8082/consumers/my_jsonschema_consumer_group
#= {"instance_id":"my_consumer_instance","base_uri":"http://localhost:8082/consumers/my_jsonschema_consumer_group/instances/my_consumer_instance"}

curl -X POST -H "Content-Type: application/vnd.kafka.jsonschema.v2+json" --data '{"topics":["jsonschematest"]}' \
      http://localhost:8082/consumers/my_jsonschema_consumer_group/instances/my_consumer_instance/subscription
#! 204

curl -X GET -H "Accept: application/vnd.kafka.jsonschema.v2+json" \
      http://localhost:8082/consumers/my_jsonschema_consumer_group/instances/my_consumer_instance/records
#= [{"key":null,"value":{"name":"testUser"},"partition":0,"offset":0,"topic":"jsonschematest"}]

curl -X DELETE -H "Content-Type: application/vnd.kafka.jsonschema.v2+json" \
      http://localhost:8082/consumers/my_jsonschema_consumer_group/instances/my_consumer_instance
#! 204

# ---- v2: topics ----

curl "http://localhost:8082/topics"
#~ "avrotest"
#~ "binarytest"
#~ "jsontest"

curl "http://localhost:8082/topics/avrotest"
#= {"name":"avrotest","configs":{"cleanup.policy":"delete"},"partitions":[{"partition":0,"leader":"...","replicas":[{"broker":"...","leader":true,"in_sync":true}]}]}

curl "http://localhost:8082/topics/avrotest/partitions"
#= [{"partition":0,"leader":"...","replicas":[{"broker":"...","leader":true,"in_sync":true}]}]

# ---- v3: from the README ----

curl http://localhost:8082/v3/clusters
#= {"kind":"KafkaClusterList","data":[{"kind":"KafkaCluster","cluster_id":"xFhUvurESIeeCI87SXWR-Q"}]}

curl -X POST -H "Content-Type: application/json" \
       -d '{"value":{"type":"JSON","data":{"name":"testUser"}}}' \
       http://localhost:8082/v3/clusters/xFhUvurESIeeCI87SXWR-Q/topics/jsontest/records
#= {"error_code":200,"cluster_id":"xFhUvurESIeeCI87SXWR-Q","topic_name":"jsontest","partition_id":0,"offset":1,"timestamp":"...","value":{"type":"JSON","size":19}}

curl -X POST -H "Content-Type: application/json" \
       -d '{"value":{"type":"JSON","data":"ONE"}} {"value":{"type":"JSON","data":"TWO"}}' \
       http://localhost:8082/v3/clusters/xFhUvurESIeeCI87SXWR-Q/topics/jsontest/records
#= {"error_code":200,"topic_name":"jsontest","partition_id":0,"offset":2,"value":{"type":"JSON","size":5}}
#= {"error_code":200,"topic_name":"jsontest","partition_id":0,"offset":3,"value":{"type":"JSON","size":5}}

curl -X POST -H "Content-Type: application/json" \
       -d '{"value":{"type":"STRING","data":"REST"}}' \
       http://localhost:8082/v3/clusters/xFhUvurESIeeCI87SXWR-Q/topics/jsontest/records
#= {"error_code":200,"topic_name":"jsontest","partition_id":0,"offset":4,"value":{"type":"STRING","size":4}}

# ---- v3: the bodies of the OpenAPI description ----

curl -X POST -H "Content-Type: application/json" \
       -d '{"partition_id":1,"headers":[{"name":"Header-1","value":"SGVhZGVyLTE="},{"name":"Header-2","value":"SGVhZGVyLTI="}],"key":{"type":"BINARY","data":"Zm9vYmFy"},"value":{"type":"JSON","data":{"foo":"bar"}},"timestamp":"2021-02-05T19:14:42Z"}' \
       http://localhost:8082/v3/clusters/xFhUvurESIeeCI87SXWR-Q/topics/topic-1/records
#= {"error_code":200,"topic_name":"topic-1","partition_id":1,"offset":0,"timestamp":"2021-02-05T19:14:42Z","key":{"type":"BINARY","size":6},"value":{"type":"JSON","size":13}}

curl -X POST -H "Content-Type: application/json" \
       -d '{"partition_id":1,"headers":[{"name":"Header-1","value":"SGVhZGVyLTE="},{"name":"Header-2","value":"SGVhZGVyLTI="}],"key":{"type":"BINARY","data":"Zm9vYmFy"},"value":{"type":"AVRO","subject":"topic-1-key","schema":"{\"type\":\"string\"}","data":"foobar"},"timestamp":"2021-02-05T19:14:42Z"}' \
       http://localhost:8082/v3/clusters/xFhUvurESIeeCI87SXWR-Q/topics/topic-1/records
#= {"error_code":200,"partition_id":1,"offset":1,"key":{"type":"BINARY","size":6},"value":{"type":"AVRO","subject":"topic-1-key","schema_id":"...","schema_version":1,"size":12}}

curl -X POST -H "Content-Type: application/json" \
       -d '{"value":{"type":"STRING","data":"My message"}}' \
       http://localhost:8082/v3/clusters/xFhUvurESIeeCI87SXWR-Q/topics/topic-1/records
#= {"error_code":200,"value":{"type":"STRING","size":10}}

curl -X POST -H "Content-Type: application/json" \
       -d '{"key":{"data":1000},"value":{"data":"foobar"}}' \
       http://localhost:8082/v3/clusters/xFhUvurESIeeCI87SXWR-Q/topics/topic-2/records
#= {"error_code":200,"key":{"type":"AVRO","subject":"topic-2-key","size":7},"value":{"type":"AVRO","subject":"topic-2-value","size":12}}

curl -X POST -H "Content-Type: application/json" \
       -d '{"key":{"data":1000}}' \
       http://localhost:8082/v3/clusters/xFhUvurESIeeCI87SXWR-Q/topics/topic-2/records
#= {"error_code":200,"key":{"type":"AVRO","subject":"topic-2-key","size":7}}

curl -X POST -H "Content-Type: application/json" \
       -d '{"value":{"type":"BINARY","data":1}}' \
       http://localhost:8082/v3/clusters/xFhUvurESIeeCI87SXWR-Q/topics/topic-1/records
#= {"error_code":400,"message":"..."}
