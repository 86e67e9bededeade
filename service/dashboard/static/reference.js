// Starts Swagger UI on the document that the service serves. Nothing is fetched from, or sent, elsewhere.
"use strict";
SwaggerUIBundle({
  url: "/v1/openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  docExpansion: "none",
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
  syntaxHighlight: { activated: false },
});
